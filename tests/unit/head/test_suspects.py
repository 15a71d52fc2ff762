"""Who is suspected when a worker dies, and who is guilty: worked out by hand from the rule."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgpack
import pytest

from bus.ids import NodeIdentity, WorkerIncarnation
from head.suspects import (
    CLEARED_AFTER_TOKENS,
    FEW,
    SETTLED_AFTER_TOKENS,
    UNSEEN_TOKENS,
    Death,
    Suspect,
    Suspicion,
    WorkerName,
    blame,
    explain,
    judge,
    leave_unclear,
    waits_for,
)

NODE = NodeIdentity("n1")
WORKERS: list[WorkerName] = [(NODE, WorkerIncarnation(number)) for number in range(100)]


class Case:
    """Suspicions, and the deaths of workers one after the other."""

    def __init__(self, count: int) -> None:
        self.all = [Suspicion() for _ in range(count)]
        self._workers = itertools.count(1)

    def died(self, *new: Suspicion, settled: tuple[Suspicion, ...] = ()) -> None:
        """A worker died, on which these had made few tokens, or enough."""
        suspects = [Suspect(one, 0) for one in new]
        suspects += [Suspect(one, SETTLED_AFTER_TOKENS) for one in settled]
        blame(suspects, WORKERS[next(self._workers)])
        self.judge(*new, *settled)

    def cleared(self, *ones: Suspicion) -> None:
        for one in ones:
            one.progress(CLEARED_AFTER_TOKENS)
        self.judge(*self.all)

    def judge(self, *ones: Suspicion) -> None:
        judge(ones, [one for one in self.all if one.seen])

    @property
    def guilty(self) -> list[int]:
        return [place for place, one in enumerate(self.all) if one.guilty]


def test_one_that_is_alone_on_two_workers_that_die_is_guilty() -> None:
    case = Case(1)
    case.died(*case.all)
    assert case.guilty == []
    case.died(*case.all)
    assert case.guilty == [0]


def test_one_that_was_set_apart_is_guilty_with_the_second_death() -> None:
    """It dies while it decodes; beside it a long prompt has no token yet (the other way round)."""
    case = Case(4)
    bad, long, *others = case.all
    case.died(long, settled=(bad, *others))
    assert all(one.set_apart for one in case.all)
    # The long prompt, the more suspected, waits for those that decoded; these go on one at a time.
    assert [waits_for(long, one) for one in (bad, *others)] == [True] * 3
    assert not any(waits_for(one, long) for one in case.all)
    case.died(bad)
    assert case.guilty == [0]
    explain(bad, case.all)
    assert all(one == Suspicion() for one in (long, *others))


def test_g0_request_that_dies_in_its_prefill_waits_until_its_neighbours_are_cleared() -> None:
    case = Case(5)
    bad, *neighbours, there = case.all
    case.died(bad, settled=tuple(neighbours))
    case.cleared(*neighbours)
    # The next worker had work, too, which may have been the reason.
    case.died(bad, settled=(there,))
    assert case.guilty == []
    assert waits_for(bad, there)
    assert not waits_for(there, bad)
    case.cleared(there)
    assert case.guilty == [0]


def test_an_innocent_that_shared_a_death_with_each_of_two_killers_is_never_guilty() -> None:
    case = Case(3)
    first, second, innocent = case.all
    case.died(first, innocent)
    case.died(second, innocent)
    assert case.guilty == []
    assert waits_for(innocent, second)
    case.died(second)
    assert case.guilty == [1]
    explain(second, case.all)
    assert innocent.deaths == 1
    case.died(first)
    assert case.guilty == [0, 1]
    explain(first, case.all)
    assert innocent == Suspicion()


def test_many_go_on_together_and_one_of_them_kills_three_at_most() -> None:
    case = Case(FEW + 1)
    bad, *others = case.all
    case.died(*case.all)
    assert not any(one.set_apart for one in case.all)
    case.died(*case.all)
    assert all(one.set_apart for one in case.all)
    assert case.guilty == []
    case.died(bad)
    assert case.guilty == [0]
    explain(bad, case.all)
    assert all(one.deaths == 0 for one in others)


def test_the_last_suspect_of_two_deaths_is_guilty_without_a_third() -> None:
    case = Case(2)
    bad, other = case.all
    case.died(bad, other)
    case.died(bad, other)
    case.cleared(other)
    assert case.guilty == [0]


def test_the_last_suspect_of_one_death_is_not_guilty() -> None:
    case = Case(2)
    case.died(*case.all)
    case.cleared(case.all[1])
    assert case.guilty == []


def test_tokens_clear_it_of_everything() -> None:
    case = Case(1)
    (suspicion,) = case.all
    case.died(suspicion)
    before = replace(suspicion, seen=list(suspicion.seen))
    suspicion.progress(CLEARED_AFTER_TOKENS - 1)
    assert suspicion == before
    suspicion.progress(CLEARED_AFTER_TOKENS)
    assert suspicion == Suspicion()
    case.died(suspicion)
    assert not suspicion.guilty


def test_who_may_have_made_tokens_unseen_is_cleared_past_all_of_them() -> None:
    """It killed its worker while the link was down, after more tokens than ever came."""
    suspicion = Suspicion()
    blame([Suspect(suspicion, 10, unseen=True)], WORKERS[1])
    suspicion.progress(CLEARED_AFTER_TOKENS + UNSEEN_TOKENS - 1)
    assert suspicion.deaths == 1
    suspicion.progress(CLEARED_AFTER_TOKENS + UNSEEN_TOKENS)
    assert suspicion == Suspicion()


def test_death_that_one_left_uncleared_is_never_certain_of_another() -> None:
    case = Case(2)
    gone, other = case.all
    case.died(gone, other)
    leave_unclear(gone, case.all)
    gone.clear()
    case.judge(other)
    assert case.guilty == []
    # It counts beside one that is certain.
    case.died(other)
    assert case.guilty == [1]


def test_two_unclear_deaths_make_nobody_guilty() -> None:
    case = Case(3)
    first, second, other = case.all
    for gone in (first, second):
        case.died(gone, other)
        leave_unclear(gone, case.all)
        gone.clear()
    case.judge(other)
    assert case.guilty == []


def test_request_that_the_worker_had_not_begun_with_is_excused_of_that_death_only() -> None:
    suspicion = Suspicion()
    blame([Suspect(suspicion, 0), Suspect(Suspicion(), 0)], WORKERS[7])
    for other in (WORKERS[6], (NodeIdentity("n2"), WorkerIncarnation(7))):
        suspicion.excuse(other)
    assert suspicion.deaths == 1
    suspicion.excuse(WORKERS[7])
    suspicion.excuse(WORKERS[7])
    assert suspicion == Suspicion()


def test_one_death_that_is_told_twice_is_one() -> None:
    suspicion = Suspicion()
    for _ in range(2):
        blame([Suspect(suspicion, 0)], WORKERS[7])
    assert suspicion.deaths == 1


def test_excuse_of_the_last_suspect_but_one_makes_the_death_certain() -> None:
    case = Case(2)
    bad, late = case.all
    case.died(bad)
    case.died(bad, late)
    assert case.guilty == []
    late.excuse(WORKERS[2])
    case.judge(bad)
    assert case.guilty == [0]


def test_it_is_stored_and_read() -> None:
    suspicion = Suspicion(engine_errors=1, set_apart=True)
    suspicion.seen = [Death(WORKERS[3], settled=True), Death(WORKERS[4], unclear=True)]
    suspicion.seen.append(Death(WORKERS[5], unseen=True))
    assert Suspicion.decode(suspicion.encode()) == suspicion
    assert Suspicion().encode() == b""
    assert Suspicion.decode(b"") == Suspicion()


@pytest.mark.parametrize(("deaths", "seen"), [(0, []), (1, [Death(WORKERS[5], unclear=True)])])
def test_what_an_older_version_stored_is_read(deaths: int, seen: list[Death]) -> None:
    stored = msgpack.packb((deaths, bool(deaths), 1, *WORKERS[5]))
    assert Suspicion.decode(stored) == Suspicion(seen=seen, set_apart=bool(deaths), engine_errors=1)
