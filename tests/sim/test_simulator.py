"""The simulator itself: its corpus and a thousand seeds hold, and no seeded bug gets past it."""

from __future__ import annotations

import pytest

from tests.sim.world import corpus
from tests.sim.world.mutants import MUTANTS
from tests.sim.world.mutation import hunt_in_child
from tests.sim.world.profiles import PROFILES
from tests.sim.world.runner import describe
from tests.sim.world.world import Outcome, run_seed

RUNS = 1000
PARTS = 8


def check(outcomes: list[Outcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.violation]
    assert not failed, "\n".join(map(describe, failed))


@pytest.mark.parametrize(("seed", "profile"), corpus.read())
def test_seed_that_once_found_something_holds(seed: int, profile: str) -> None:
    check([run_seed(seed, profile)])


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_hold(part: int) -> None:
    check([run_seed(seed) for seed in range(part + 1, RUNS + 1, PARTS)])


@pytest.mark.parametrize("profile", [profile.name for profile in PROFILES])
def test_run_is_the_same_to_the_event_when_it_is_replayed(profile: str) -> None:
    first, second = run_seed(7, profile), run_seed(7, profile)
    assert first == second
    assert first.events > 100


@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
def test_seeded_bug_is_caught(name: str) -> None:
    is_caught, line = hunt_in_child(name)
    assert is_caught, line
