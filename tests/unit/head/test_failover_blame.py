"""Which of the streams on a worker that died is to blame, told by the core's messages."""

from __future__ import annotations

import pytest

from bus.messages.link import GenerateReq
from head.suspects import Suspicion
from tests.harness.head_bench import Bench, cancel, declined, respawned, run


def test_g0_a_request_that_kills_every_worker_ends_with_the_second_and_neighbours_go_on(
    bench: Bench,
) -> None:
    good = bench.ask(b"good", max_new=40)
    bench.hear(1, run(good, 0, 65))
    bad = bench.ask(b"bad", max_new=40)
    bench.died(1, good, bad)
    bench.wait(1.0)
    # The status that is known is of the dead worker: nothing goes there until a new one is up.
    assert len(bench.on(1, GenerateReq)) == 2
    bench.hear(1, respawned(2))
    # They go on one at a time: the other one follows when some tokens speak for the first.
    (good,) = bench.on(1, GenerateReq)[2:]
    bench.hear(1, run(good, 0, *range(66, 70)))
    bench.wait(0.1)
    (bad,) = bench.on(1, GenerateReq)[3:]
    bench.died(1, good, bad, worker=2)
    bench.wait(1.0)
    bench.hear(1, respawned(3))
    (good,) = bench.on(1, GenerateReq)[4:]
    assert not errors(bench)
    bench.hear(1, run(good, 0, *range(70, 86)))
    assert errors(bench) == {b"bad": "request_kills_workers"}
    bench.hear(1, run(good, 16, 86, finish="eos"))
    assert [r["finish"] for r in bench.replies if r["kind"] == "end"] == ["stop"]
    bench.wait(60.0)
    assert len(bench.on(1, GenerateReq)) == 5


def errors(bench: Bench) -> dict[bytes, str]:
    """The errors that requests ended with."""
    return {r["id"]: r["error"]["code"] for r in bench.replies if r["kind"] == "error"}


def test_request_that_dies_as_it_decodes_ends_and_a_long_prompt_beside_it_does_not(
    bench: Bench,
) -> None:
    bad, long = bench.ask(b"bad", max_new=40), bench.ask(b"long", max_new=40)
    bench.hear(1, run(bad, 0, *range(65, 73)))
    bench.died(1, bad, long)
    bench.wait(1.0)
    bench.hear(1, respawned(2))
    # The long prompt has no token yet and is the more suspect: it waits.
    (bad,) = bench.on(1, GenerateReq)[2:]
    bench.died(1, bad, worker=2)
    assert errors(bench) == {b"bad": "request_kills_workers"}
    (answer,) = (one for one in bench.core.book if not one.ended)
    assert answer.suspicion == Suspicion()
    bench.hear(1, respawned(3))
    bench.wait(1.0)
    (long,) = bench.on(1, GenerateReq)[3:]
    bench.hear(1, run(long, 0, 65, finish="eos"))
    assert [r["finish"] for r in bench.replies if r["kind"] == "end"] == ["stop"]


def test_cancelled_suspect_makes_nobody_else_guilty(bench: Bench) -> None:
    bad, good = bench.ask(b"bad", max_new=40), bench.ask(b"good", max_new=40)
    bench.died(1, bad, good)
    cancel(bench, b"bad")
    (answer,) = (one for one in bench.core.book if not one.ended)
    (death,) = answer.suspicion.seen
    assert death.unclear
    bench.wait(1.0)
    bench.hear(1, respawned(2))
    assert bench.last(GenerateReq).session == good.session


@pytest.mark.parametrize("code", ["model_not_ready", "worker_lost"])
def test_request_that_the_dead_worker_had_not_begun_with_is_not_blamed(
    bench: Bench, code: str
) -> None:
    first = bench.ask(b"first", max_new=40)
    bench.hear(1, run(first, 0, 65))
    second = bench.ask(b"second", max_new=40)
    bench.died(1, first)
    bench.hear(1, declined(second, code))
    bench.hear(1, respawned(2))
    bench.wait(1.0)
    second = bench.last(GenerateReq)
    bench.died(1, second, worker=2)
    assert not any(reply["kind"] == "error" for reply in bench.replies)


def test_request_that_went_on_after_a_death_was_not_on_the_worker_that_died(bench: Bench) -> None:
    """It was placed while the news of the death was on its way, and runs on the next worker."""
    first = bench.ask(b"first", max_new=40)
    bench.hear(1, run(first, 0, 65))
    twice = bench.ask(b"twice", max_new=40)
    bench.died(1, first)
    bench.hear(1, respawned(2))
    bench.hear(1, run(twice, 0, 65))
    bench.died(1, twice, worker=2)  # the first death with it: it is tried again
    bench.hear(1, respawned(3))
    bench.wait(1.0)
    assert not any(reply["kind"] == "error" for reply in bench.replies)
    assert {request.session for request in bench.on(1, GenerateReq)[-2:]} == {
        first.session,
        twice.session,
    }


def test_death_shared_with_a_generation_whose_answer_has_ended_is_certain_of_nobody(
    bench: Bench,
) -> None:
    """The head does not know any more what that one was, and it may be the reason."""
    request = bench.ask(b"a", max_new=40)
    bench.died(1, request)
    bench.hear(1, respawned(2))
    bench.wait(1.0)
    bench.died(1, bench.last(GenerateReq), worker=2, also=77)
    bench.hear(1, respawned(3))
    bench.wait(1.0)
    assert not errors(bench)
    bench.died(1, bench.last(GenerateReq), worker=3)
    assert errors(bench) == {b"a": "request_kills_workers"}


def test_suspects_that_are_set_apart_run_one_after_the_other(bench: Bench) -> None:
    first, second = bench.ask(b"a", max_new=40), bench.ask(b"b", max_new=40)
    bench.died(1, first, second)
    bench.wait(1.0)
    bench.hear(1, respawned(2))
    bench.wait(1.0)
    assert len(bench.on(1, GenerateReq)) == 3
    bench.hear(1, run(bench.last(GenerateReq), 0, 65, 66, 67))
    bench.wait(1.0)
    assert len(bench.on(1, GenerateReq)) == 3
    bench.hear(1, run(bench.last(GenerateReq), 3, 68))
    bench.wait(0.1)
    assert len(bench.on(1, GenerateReq)) == 4


def test_what_a_worker_made_while_its_link_was_down_is_unseen(bench: Bench) -> None:
    request = bench.ask(b"a", max_new=40)
    bench.hear(1, run(request, 0, 65))
    (answer,) = bench.core.book
    bench.down(1)
    bench.node(2, "n1")
    bench.died(2, request)
    assert [death.unseen for death in answer.suspicion.seen] == [True]


def test_what_came_over_the_link_before_a_death_was_seen(bench: Bench) -> None:
    request = bench.ask(b"a", max_new=40)
    bench.hear(1, run(request, 0, 65))
    (answer,) = bench.core.book
    bench.died(1, request)
    assert [death.unseen for death in answer.suspicion.seen] == [False]
