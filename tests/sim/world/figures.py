"""What workers say of themselves, made up so that wrong figures show: caches and numerics.

How much of a context a worker did not have to compute depends on the generation, so that a figure
that was taken from another one, twice or not at all is a different number.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from bus.messages.worker import Submit

if TYPE_CHECKING:
    from tests.harness.memory_fleet import MemoryFleet

#: Of nodes; two of three compute alike.
NUMERICS = ("made-up", "made-up", "made-up elsewhere")


def cached_tokens(submit: Submit) -> int:
    """How many of its context's tokens a worker says that it had; none for a part of them."""
    tokens = len(submit.context) // 4
    drawn = Random(submit.generation).randrange(3 * tokens // 2 + 1)
    return drawn if drawn < tokens else 0


def set_figures(fleet: MemoryFleet, seed: int) -> None:
    """Have the workers of a fleet say such things."""
    rng = Random(f"numerics {seed}")
    for node in fleet.nodes:
        node.numerics, node.cached = rng.choice(NUMERICS), cached_tokens
