"""What a head does whose store was put back from a copy.

Since the copy was made, nodes and clients may have seen numbers, tokens and ends that it knows
nothing of. So that nothing of then is taken for something of now,

- the boot number goes up by `JUMP`, and above one that grows with wall time: above whatever was
  given out since, also when one copy is put back a second time;
- answers that had not ended end with `store_restored`: they went on after the copy, elsewhere;
- a cursor above 0 into an answer of the copy is refused: it may count tokens of a later answer
  under the same session or key.

The boot number of the start that found the copy stays in a setting; lower ids are the copy's.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.errors import CursorAhead, StoreRestored
from bus.ids import boot_of
from head.rows import PutSetting

SETTING = "put_back_boot"
#: More starts than a head makes between a copy and its use: one a second for 18 hours.
JUMP = 2**16
#: No head had a store before (14 November 2023).
_FIRST_S = 1_700_000_000
#: What a clock that is far ahead makes of it at most: half of all boot numbers.
_MOST_BY_CLOCK = 2**30


def boot_above_copy(boot: int, wall_s: float) -> int:
    """The boot number with which a head goes on from a copy.

    Args:
        boot: the copy's.
        wall_s: seconds since 1970. A head starts less often than once a second.
    """
    return max(boot + JUMP, min(int(wall_s) - _FIRST_S, _MOST_BY_CLOCK))


class PutBack:
    """Tells answers of the copy from later ones. Owned by the core.

    Args:
        settings: as stored.
    """

    def __init__(self, settings: Iterable[PutSetting]) -> None:
        found = next((each.value for each in settings if each.name == SETTING), "")
        self._boot = int(found) if found.isdecimal() else 0

    def is_of_copy(self, answer: int) -> bool:
        """Whether an answer's number was given out before the copy was put back."""
        return boot_of(answer) < self._boot

    def check_cursor(self, answer: int, offset: int) -> None:
        """See that a cursor can be about this answer.

        Raises:
            CursorAhead: it may be about one that is lost.
        """
        if offset and self.is_of_copy(answer):
            raise CursorAhead(
                f"the head's store was put back from a backup, so offset {offset} may be of an "
                "answer that is lost; read this one from offset 0",
                param="offset",
                details={"offset": offset, "have": 0},
            )


def lost_since() -> StoreRestored:
    """The end of an answer that had not ended when its copy was made."""
    return StoreRestored(
        "the head's store was put back from a backup that was made while this answer ran; what "
        "came after it is lost. Ask again, under another key if it had one"
    )
