"""How a constraint is refused."""

from __future__ import annotations

from bus.errors import ConstraintInvalid

PARAM = "constraint"
#: Of what the engine says.
_LONGEST = 300


def refused(where: str, why: str) -> ConstraintInvalid:
    """An error that names the place inside the constraint.

    Args:
        where: the kind, or a place inside it.
        why: the fact and the remedy.
    """
    short = why if len(why) <= _LONGEST else why[:_LONGEST] + "..."
    return ConstraintInvalid(f"the constraint can not be used: {where}: {short}", param=PARAM)
