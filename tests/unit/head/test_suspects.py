"""Who is blamed when a worker dies: cases worked out by hand from the rule."""

from __future__ import annotations

import itertools
from dataclasses import replace

from bus.ids import NodeIdentity, WorkerIncarnation
from head.suspects import CLEARED_AFTER_TOKENS, Suspect, Suspicion, blame

NODE = NodeIdentity("n1")
WORKERS = ((NODE, WorkerIncarnation(number)) for number in itertools.count(1))


def died(*unproven: Suspicion, proven: tuple[Suspicion, ...] = ()) -> None:
    suspects = [Suspect(one, False) for one in unproven] + [Suspect(one, True) for one in proven]
    blame(suspects, next(WORKERS))


def test_g0_request_that_dies_in_its_prefill_ends_with_the_second_worker() -> None:
    bad, neighbours = Suspicion(), tuple(Suspicion() for _ in range(3))
    died(bad, proven=neighbours)
    assert bad == Suspicion(deaths=1, set_apart=True, last=bad.last)
    # The neighbours moved with it and have no token from the new worker yet.
    died(bad, *neighbours)
    assert bad.guilty
    assert all(one == Suspicion() for one in neighbours)


def test_one_of_several_unproven_is_found_by_the_third_death() -> None:
    bad, other = Suspicion(), Suspicion()
    died(bad, other)
    assert [one.set_apart for one in (bad, other)] == [False, False]
    died(bad, other)
    assert [one.set_apart for one in (bad, other)] == [True, True]
    # Set apart, they run on different workers.
    died(bad)
    assert bad.guilty
    assert not other.guilty


def test_all_are_blamed_when_every_one_has_a_token_from_it() -> None:
    one, two = Suspicion(), Suspicion()
    died(proven=(one, two))
    assert (one.deaths, two.deaths) == (1, 1)
    assert not one.set_apart


def test_tokens_clear_it_of_everything() -> None:
    suspicion = Suspicion()
    died(suspicion)
    before = replace(suspicion)
    suspicion.progress(CLEARED_AFTER_TOKENS - 1)
    assert suspicion == before
    suspicion.progress(CLEARED_AFTER_TOKENS)
    assert (suspicion.deaths, suspicion.set_apart) == (0, False)
    died(suspicion)
    assert not suspicion.guilty


def test_request_that_the_worker_had_not_begun_with_is_excused_of_that_death_only() -> None:
    suspicion = Suspicion()
    blame([Suspect(suspicion, False), Suspect(Suspicion(), False)], (NODE, WorkerIncarnation(7)))
    for other in ((NODE, WorkerIncarnation(6)), (NodeIdentity("n2"), WorkerIncarnation(7))):
        suspicion.excuse(other)
    assert suspicion.deaths == 1
    suspicion.excuse((NODE, WorkerIncarnation(7)))
    suspicion.excuse((NODE, WorkerIncarnation(7)))
    assert suspicion.deaths == 0


def test_request_that_is_excused_of_all_is_blamed_like_any_other_again() -> None:
    excused, bad = Suspicion(), Suspicion()
    # Blamed alone, since the other one has a token; but it had not even begun.
    worker = (NODE, WorkerIncarnation(7))
    blame([Suspect(excused, False), Suspect(bad, True)], worker)
    assert excused.set_apart
    excused.excuse(worker)
    assert excused == Suspicion()
    died(excused, bad)
    assert (excused.deaths, bad.deaths) == (1, 1)
    assert not excused.set_apart
