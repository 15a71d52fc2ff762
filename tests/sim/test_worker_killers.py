"""A request that kills its workers, beside others, in fleets in memory with real cores."""

from __future__ import annotations

import pytest

from tests.harness.memory_fleet import MemoryFleet
from tests.harness.memory_worker import LATE_POISON, POISON

KILLS = "request_kills_workers"


def prompt(kills_at: int) -> str:
    """A prompt that kills its worker in place of this token of its answer."""
    return "poison" + (chr(LATE_POISON) + chr(kills_at) if kills_at else chr(POISON))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kills_at", [0, 1, 8, 30])
@pytest.mark.parametrize("before_s", [0.0, 0.15])
def test_g0_it_kills_two_workers_whenever_it_does_and_nobody_else_ends(
    nodes: int, kills_at: int, before_s: float
) -> None:
    fleet = MemoryFleet(seed=3, nodes=nodes)
    fleet.run(3.0)
    first = fleet.generate("first", 60)
    fleet.run(before_s)
    bad = fleet.generate(prompt(kills_at), 100)
    fleet.run(before_s)
    others = [first, *(fleet.generate(f"other {number}", 60) for number in range(2))]
    fleet.finish(bad, *others, limit_s=300)
    assert (bad.error or {}).get("code") == KILLS
    assert len(bad.tokens) == kills_at
    assert [one.end and one.end["finish"] for one in others] == ["length"] * 3
    # Placed, and moved once: the second worker was the last.
    assert [event["type"] for event in bad.events].count("moved") == 1
