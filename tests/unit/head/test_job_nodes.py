"""Jobs and the nodes that can not do them: busy, full, old, of another kind, or none at all."""

from __future__ import annotations

from typing import Any

import pytest

from bus.capabilities import CAPABILITIES, JOBS
from head.job_kinds import JobDone
from head.job_room import ASK_AGAIN_S, MAX_IN_FLIGHT, PASSED_S
from tests.harness.job_bench import JobBench, packed

WITHOUT = tuple(name for name in CAPABILITIES if name != JOBS)


@pytest.fixture
def bench() -> JobBench:
    made = JobBench()
    made.encoder(1, "n1")
    return made


def error_of(bench: JobBench, job: int) -> Any:
    error = bench.ends[job]
    assert not isinstance(error, JobDone)
    return error


# --- other weights under the same name --------------------------------------------------------


def begun_with(bench: JobBench, weights: int) -> int:
    """A job of which a node gave one part."""
    bench.status(1, weights_digest=weights)
    job = bench.submit(resume=lambda body, parts: b"rest")
    bench.part(1, bench.starts(1)[-1], 0, b"a")
    return job


@pytest.mark.parametrize("other", [0, 8])
def test_a_job_goes_on_with_the_same_weights_only(bench: JobBench, other: int) -> None:
    job = begun_with(bench, 7)
    bench.encoder(2, "n2", weights_digest=other)
    bench.down(1)
    assert bench.starts(2) == []
    bench.encoder(3, "n3", weights_digest=7)
    (rest,) = bench.starts(3)
    assert rest.body == b"rest"
    bench.part(3, rest, 0, b"b")
    bench.end(3, rest, parts=1)
    assert bench.got[job] == [b"a", b"b"]
    assert isinstance(bench.ends[job], JobDone)


def test_where_no_node_has_the_weights_it_began_with_it_is_lost(bench: JobBench) -> None:
    job = begun_with(bench, 7)
    bench.encoder(2, "n2", weights_digest=8)
    bench.down(1)
    bench.wait(60.0)
    error = error_of(bench, job)
    assert error.code == "node_lost"
    assert "n2: its weights of enc are others than those that the job began with" in error.message


def test_one_that_gave_nothing_yet_begins_with_any_weights(bench: JobBench) -> None:
    bench.status(1, weights_digest=7)
    bench.submit(resume=lambda body, parts: b"rest")
    bench.encoder(2, "n2", weights_digest=8)
    bench.down(1)
    assert [start.body for start in bench.starts(2)] == [b"\x80"]


# --- busy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["queue_full", "model_not_ready", "worker_behind"])
def test_a_busy_node_is_asked_again_a_moment_later(bench: JobBench, code: str) -> None:
    job = bench.submit()
    bench.end(1, bench.starts(1)[0], code=code, message="not now")
    assert len(bench.starts(1)) == 1
    bench.wait(0.3)
    bench.end(1, bench.starts(1)[1])
    assert isinstance(bench.ends[job], JobDone)


def test_one_that_has_no_room_although_it_has_nothing_to_do_is_named(bench: JobBench) -> None:
    job = bench.submit()
    for _ in range(41):
        bench.end(1, bench.starts(1)[-1], code="queue_full", message="256 jobs")
        bench.wait(0.25)
    error = error_of(bench, job)
    assert (error.code, error.retry_after_ms) == ("queue_full", 1000)
    assert error.details == {"nodes": {"n1": "256 jobs"}}


@pytest.mark.parametrize("code", ["queue_full", "worker_behind"])
def test_while_a_node_works_one_that_it_has_no_room_for_waits(bench: JobBench, code: str) -> None:
    bench.submit()
    waits = bench.submit()
    working = bench.starts(1)[0]
    bench.end(1, bench.starts(1)[1], code=code, message="full")
    asked = 2
    for _ in range(120):
        bench.wait(1.0)
        if len(bench.starts(1)) > asked:
            asked += 1
            bench.end(1, bench.starts(1)[-1], code=code, message="full")
    # It was asked each few seconds, and never given up.
    assert asked == 2 + 120 // ASK_AGAIN_S
    assert waits not in bench.ends
    bench.end(1, working)
    bench.wait(0.0)
    assert len(bench.starts(1)) == asked + 1
    bench.end(1, bench.starts(1)[-1])
    assert isinstance(bench.ends[waits], JobDone)


def test_several_that_a_full_node_refused_are_not_sent_again_at_once(bench: JobBench) -> None:
    jobs = [bench.submit() for _ in range(MAX_IN_FLIGHT)]
    for start in bench.starts(1)[1:]:
        bench.end(1, start, code="queue_full", message="full")
    bench.wait(1.0)
    assert len(bench.starts(1)) == MAX_IN_FLIGHT
    bench.end(1, bench.starts(1)[0])
    bench.wait(0.0)
    for start in bench.starts(1)[MAX_IN_FLIGHT:]:
        bench.end(1, start)
    assert all(isinstance(bench.ends[job], JobDone) for job in jobs)


def test_the_budget_ends_one_that_waits_for_a_full_node(bench: JobBench) -> None:
    bench.submit()
    waits = bench.submit(wall_ms=20_000)
    for _ in range(25):
        for start in bench.starts(1)[1:]:
            bench.end(1, start, code="queue_full", message="full")
        bench.wait(1.0)
    assert error_of(bench, waits).code == "expired"
    assert bench.desk.running == 1


def test_one_that_a_full_node_refused_goes_to_another(bench: JobBench) -> None:
    bench.submit()
    bench.submit()
    bench.encoder(2, "n2")
    bench.end(1, bench.starts(1)[1], code="queue_full", message="full")
    assert len(bench.starts(2)) == 1


def test_others_go_past_one_that_was_refused_but_not_for_ever(bench: JobBench) -> None:
    bench.submit()
    big = bench.submit(client=b"a", body=packed(is_big=True))
    bench.end(1, bench.starts(1)[-1], code="queue_full", message="full")
    bench.submit(client=b"b", body=packed(n=1))
    assert bench.starts(1)[-1].body == packed(n=1)
    while bench.now < PASSED_S + ASK_AGAIN_S:
        bench.wait(1.0)
        if bench.starts(1)[-1].body == packed(is_big=True):
            bench.end(1, bench.starts(1)[-1], code="queue_full", message="full")
    began = len(bench.starts(1))
    bench.submit(client=b"b", body=packed(n=2))
    bench.submit("tokenizer", client=b"b", body=packed(n=3))
    # Of another kind, which it does not wait for.
    assert [start.body for start in bench.starts(1)[began:]] == [packed(n=3)]
    bench.end(1, bench.starts(1)[0])
    bench.wait(0.0)
    assert [start.body for start in bench.starts(1)[began + 1 :]] == [
        packed(is_big=True),
        packed(n=2),
    ]
    assert big not in bench.ends


def test_a_version_that_does_not_know_the_kind_is_passed_over(bench: JobBench) -> None:
    bench.encoder(2, "n2")
    job = bench.submit()
    bench.end(1, bench.starts(1)[0], code="unknown_kind", message="update it")
    bench.end(2, bench.starts(2)[0])
    assert isinstance(bench.ends[job], JobDone)


def test_errors_of_the_job_itself_reach_its_owner(bench: JobBench) -> None:
    job = bench.submit()
    why = "input 3 has 99 tokens"
    bench.end(
        1, bench.starts(1)[0], code="context_length_exceeded", message=why, param="input",
        length=99, max=64,
    )  # fmt: skip
    error = error_of(bench, job)
    assert (error.code, error.message, error.param) == ("context_length_exceeded", why, "input")
    assert error.details == {"length": 99, "max": 64}
    assert bench.cancels(1) == []


def test_no_node_says_of_each_why(bench: JobBench) -> None:
    bench.encoder(2, "old", capabilities=WITHOUT)
    bench.encoder(3, "other", tokenizer_digest=5)
    bench.encoder(4, "failed", phase="failed", problem="no file")
    bench.down(1)
    bench.wait(20.0)
    job = bench.submit(tokenizer_digest=7)
    error = error_of(bench, 0) if job not in bench.ends else error_of(bench, job)
    assert error.code == "no_node"
    assert error.details["nodes"] == {
        "n1": "is down (cut)",
        "old": "its version does not know 'jobs'; update it",
        "other": "its tokenizer for enc differs from the fleet's; import the same model file "
        "there, unload it and load it again",
        "failed": "enc failed to load there: no file",
    }


def test_a_head_that_has_just_begun_waits_for_its_nodes() -> None:
    bench = JobBench()
    job = bench.submit()
    bench.wait(5.0)
    assert bench.ends == {}
    bench.encoder(1)
    assert len(bench.starts(1)) == 1
    bench.end(1, bench.starts(1)[0])
    assert isinstance(bench.ends[job], JobDone)


def test_an_old_fleet_is_told_apart_from_an_empty_one() -> None:
    bench = JobBench()
    bench.encoder(1, "old", capabilities=WITHOUT)
    bench.wait(11.0)
    bench.submit()
    assert error_of(bench, 0).code == "unsupported_on_fleet"


def test_a_model_of_another_kind_is_refused_by_name() -> None:
    bench = JobBench()
    bench.encoder(1, kind="")
    bench.wait(11.0)
    bench.submit()
    error = error_of(bench, 0)
    assert (error.code, error.param) == ("invalid", "model")
    assert error.message.startswith("enc is a model of kind decoder and makes no embeddings")


def test_a_job_of_any_kind_of_model_goes_to_a_decoder() -> None:
    bench = JobBench()
    bench.encoder(1, kind="")
    bench.submit("tokenizer")
    assert [start.kind for start in bench.starts(1)] == ["tokenizer"]
