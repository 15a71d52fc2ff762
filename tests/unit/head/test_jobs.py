"""The head's desk of jobs: where they go, what becomes of lost ones, and who hears what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.capabilities import CAPABILITIES, JOBS
from bus.errors import QueueFull
from bus.ids import ModelName
from bus.messages.link import NodeStatus
from bus.messages.link_jobs import FIRST_PARTS, MAX_PART_BYTES
from head.core import CorePolicy
from head.job_kinds import JOB_KINDS, JobDone, JobKind
from head.job_room import MAX_IN_FLIGHT
from head.jobs import MAX_IDLE_LINES
from head.runs import RunPolicy
from head.waiting import WaitingPolicy
from tests.harness.head_bench import CLIENT
from tests.harness.job_bench import ENCODER, WHISPER, JobBench, packed

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


def test_parts_come_in_order_and_then_one_end(bench: JobBench) -> None:
    job = bench.submit(body=packed(inputs=[]), qos=2)
    (start,) = bench.starts(1)
    assert (start.model, start.kind, start.qos) == ("enc", "embed", 2)
    assert start.body == b"\x81\xa6inputs\x90"
    bench.part(1, start, 0, b"a")
    bench.part(1, start, 1, b"b")
    bench.end(1, start, parts=2, body=b"c")
    assert bench.got[job] == [b"a", b"b"]
    assert bench.ends[job] == JobDone(body=b"c", node="n1")  # type: ignore[arg-type]
    assert bench.cancels(1) == []


def test_numbers_of_jobs_are_never_those_of_generations(bench: JobBench) -> None:
    bench.node(2, "toys")
    generation = bench.ask().generation
    bench.submit()
    bench.submit()
    assert len({generation, *(start.job for start in bench.starts(1))}) == 3


def test_least_in_flight_gets_the_next_and_four_is_the_most(bench: JobBench) -> None:
    bench.encoder(2, "n2")
    jobs = [bench.submit() for _ in range(2 * MAX_IN_FLIGHT + 1)]
    assert (len(bench.starts(1)), len(bench.starts(2))) == (MAX_IN_FLIGHT, MAX_IN_FLIGHT)
    bench.end(2, bench.starts(2)[0])
    bench.wait(0.0)
    assert len(bench.starts(2)) == MAX_IN_FLIGHT + 1
    assert set(bench.ends) < set(jobs)


def test_clients_take_turns(bench: JobBench) -> None:
    for number in range(MAX_IN_FLIGHT):
        bench.submit(body=packed(n=number))
    for client in (b"a", b"a", b"a", b"b"):
        bench.submit(client=client, body=packed(of=client))
    for start in bench.starts(1)[:MAX_IN_FLIGHT]:
        bench.end(1, start)
        bench.wait(0.0)
    later = [start.body for start in bench.starts(1)[MAX_IN_FLIGHT:]]
    assert later == [packed(of=client) for client in (b"a", b"b", b"a", b"a")]


def begun(bench: JobBench) -> list[bytes]:
    """Bodies of the jobs that waited, in the order in which they begin as others end."""
    number = 0
    while number < len(bench.starts(1)):
        bench.end(1, bench.starts(1)[number])
        bench.wait(0.0)
        number += 1
    return [start.body for start in bench.starts(1)[MAX_IN_FLIGHT:]]


def test_the_higher_class_begins_first(bench: JobBench) -> None:
    for _ in range(MAX_IN_FLIGHT):
        bench.submit(qos=3)
    for qos in (3, 1, 2, 0, 0, 3):
        bench.submit(client=bytes([qos]), body=packed(qos=qos), qos=qos)
    assert begun(bench) == [packed(qos=qos) for qos in (0, 0, 1, 2, 3, 3)]


def test_what_has_waited_long_gets_every_fourth_turn(bench: JobBench) -> None:
    for _ in range(MAX_IN_FLIGHT):
        bench.submit()
    bench.submit(body=b"background", qos=3)
    # Older by more than the minute that a background job may be passed over.
    bench.wait(61.0)
    for number in range(5):
        bench.submit(client=b"c", body=bytes([number]))
    assert begun(bench) == [b"\0", b"\1", b"\2", b"background", b"\3", b"\4"]


def test_only_so_many_may_wait() -> None:
    waiting = WaitingPolicy(queue_limit=2)
    bench = JobBench(CorePolicy(runs=RunPolicy(waiting=waiting)))
    bench.encoder(1)
    for _ in range(MAX_IN_FLIGHT + 2):
        bench.submit()
    with pytest.raises(QueueFull) as caught:
        bench.submit()
    assert caught.value.retry_after_ms == 1000


# --- losses -----------------------------------------------------------------------------------


def test_a_lost_link_has_the_job_done_elsewhere_and_nothing_repeated(bench: JobBench) -> None:
    job = bench.submit("tokenizer")
    (first,) = bench.starts(1)
    bench.part(1, first, 0, b"a")
    bench.encoder(2, "n2")
    bench.down(1)
    (second,) = bench.starts(2)
    assert second.job != first.job
    assert replace(second, job=first.job) == first
    for seq, body in enumerate((b"a", b"b")):
        bench.part(2, second, seq, body)
    bench.end(2, second, parts=2)
    assert bench.got[job] == [b"a", b"b"]
    assert isinstance(bench.ends[job], JobDone)


@pytest.mark.parametrize("died", [False, True], ids=["link", "worker"])
def test_jobs_that_were_lost_together_begin_again_in_their_order(
    bench: JobBench, died: bool
) -> None:
    for number in range(6):
        bench.submit(client=b"ab"[number % 2 : number % 2 + 1], body=packed(number=number))
    first = bench.starts(1)
    assert [start.body for start in first] == [packed(number=number) for number in range(4)]
    if died:
        for start in first:
            bench.end(1, start, code="worker_lost", message="it died")
        bench.status(1, worker=2)
        again = bench.starts(1)[4:]
    else:
        bench.down(1)
        bench.encoder(2, "n2")
        again = bench.starts(2)
    assert [start.body for start in again] == [start.body for start in first]


def test_words_of_a_former_try_count_no_more(bench: JobBench) -> None:
    bench.encoder(2, "n2")
    job = bench.submit()
    (first,) = bench.starts(1)
    bench.end(1, first, code="worker_lost", message="signal 9")
    (second,) = bench.starts(2)
    bench.part(1, first, 0, b"old")
    bench.end(1, first, parts=1)
    bench.part(1, second, 0, b"forged")
    assert bench.got == {}
    assert bench.ends == {}
    bench.end(2, second)
    assert isinstance(bench.ends[job], JobDone)


def test_a_worker_that_died_gets_nothing_before_it_is_ready_again(bench: JobBench) -> None:
    job = bench.submit()
    bench.end(1, bench.starts(1)[0], code="worker_lost", message="signal 9")
    assert len(bench.starts(1)) == 1
    bench.status(1, phase="loading", worker=0)
    bench.wait(1.0)
    assert len(bench.starts(1)) == 1
    bench.status(1, worker=2)
    (_, second) = bench.starts(1)
    bench.end(1, second)
    assert isinstance(bench.ends[job], JobDone)


def test_a_worker_that_died_of_a_model_that_its_node_has_no_more(bench: JobBench) -> None:
    job = bench.submit()
    bench.hear(1, NodeStatus(models=()))
    bench.end(1, bench.starts(1)[0], code="worker_lost", message="signal 9")
    bench.encoder(2, "n2")
    bench.end(2, bench.starts(2)[0])
    assert isinstance(bench.ends[job], JobDone)


def test_three_losses_are_the_end(bench: JobBench) -> None:
    job = bench.submit()
    for worker in (2, 3):
        bench.end(1, bench.starts(1)[-1], code="worker_lost", message="signal 9")
        bench.status(1, worker=worker)
        assert job not in bench.ends
    bench.end(1, bench.starts(1)[-1], code="worker_lost", message="signal 9")
    assert len(bench.starts(1)) == 3
    error = error_of(bench, job)
    assert error.code == "node_lost"
    assert error.message == (
        "the worker of enc on n1 died (signal 9); it was begun 3 times; ask again"
    )


def test_nodes_that_leave_in_order_count_for_no_loss(bench: JobBench) -> None:
    job = bench.submit()
    for link in (1, 2, 3, 4):
        bench.encoder(link + 1, f"n{link + 1}")
        bench.down(link, left=True)
    bench.end(5, bench.starts(5)[0])
    assert isinstance(bench.ends[job], JobDone)


def test_without_another_node_a_lost_job_waits_for_one_and_then_is_node_lost(
    bench: JobBench,
) -> None:
    job = bench.submit()
    bench.down(1)
    bench.wait(29.0)
    assert job not in bench.ends
    bench.wait(3.0)
    error = error_of(bench, job)
    assert error.code == "node_lost"
    assert error.details == {"nodes": {"n1": "is down (cut)"}}
    bench.submit()
    assert error_of(bench, 0).code == "no_node"


def test_a_kind_that_does_not_repeat_goes_on_where_it_was(
    bench: JobBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(JOB_KINDS, "transcribe", JobKind(repeats=False))
    bench.encoder(2, "n2")
    asked: list[tuple[bytes, int]] = []

    def resume(body: bytes, parts: int) -> bytes:
        asked.append((body, parts))
        return packed(from_part=parts)

    job = bench.submit("transcribe", resume=resume)
    (first,) = bench.starts(1)
    bench.part(1, first, 0, b"a")
    bench.part(1, first, 1, b"b")
    bench.down(1)
    (second,) = bench.starts(2)
    assert asked == [(b"\x80", 2)]
    assert second.body == packed(from_part=2)
    bench.part(2, second, 0, b"c")
    bench.end(2, second, parts=1)
    assert bench.got[job] == [b"a", b"b", b"c"]


def test_one_that_can_not_go_on_in_its_middle_says_so(
    bench: JobBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(JOB_KINDS, "speak", JobKind(repeats=False))
    bench.encoder(2, "n2")
    begun, fresh = bench.submit("speak"), bench.submit("speak")
    bench.part(1, bench.starts(1)[0], 0, b"a")
    bench.part(2, bench.starts(2)[0], 0, b"b")
    bench.down(1)
    assert error_of(bench, begun).code == "node_lost"
    assert fresh not in bench.ends


# --- credit, cancel, time -----------------------------------------------------------------------


def test_a_node_gets_credit_as_its_parts_are_taken(bench: JobBench) -> None:
    bench.submit()
    (start,) = bench.starts(1)
    for seq in range(20):
        bench.part(1, start, seq, bytes(MAX_PART_BYTES))
    assert bench.granted(1) == [8 + 16, 16 + 16]


def test_a_client_that_reads_nothing_gets_no_more_than_was_granted(bench: JobBench) -> None:
    job = bench.submit(client=CLIENT)
    (start,) = bench.starts(1)
    bench.core.client_stalled(CLIENT)
    for seq in range(16):
        bench.part(1, start, seq)
    assert bench.granted(1) == []
    bench.core.client_reads(CLIENT, bench.now)
    bench.settle()
    assert bench.granted(1) == [32]
    assert len(bench.got[job]) == 16


def test_jobs_whose_owners_take_nothing_keep_nobody_waiting(bench: JobBench) -> None:
    slow = [bench.submit(client=b"a") for _ in range(6)]
    for job in slow:
        bench.desk.hold(job, held=True)
    for start in bench.starts(1):
        for seq in range(FIRST_PARTS):
            bench.part(1, start, seq)
    assert (len(bench.starts(1)), bench.granted(1)) == (4, [])
    # With four that stand still their client begins no further one; others find all places free.
    others = [bench.submit(client=b"b", qos=3) for _ in range(5)]
    assert len(bench.starts(1)) == 8
    bench.desk.hold(slow[0], held=False)
    bench.desk.schedule_released(bench.now)
    bench.settle()
    assert bench.granted(1) == [2 * FIRST_PARTS]
    assert len(bench.starts(1)) == 8  # It keeps a place again, so five jobs do.
    bench.end(1, bench.starts(1)[0], parts=FIRST_PARTS)
    bench.wait(0.0)
    assert len(bench.starts(1)) == 8
    bench.end(1, bench.starts(1)[4])
    bench.wait(0.0)
    assert len(bench.starts(1)) == 9
    for number in [1, 2, 3, *range(5, 11)]:
        bench.end(1, bench.starts(1)[number], parts=FIRST_PARTS if number < 4 else 0)
        bench.wait(0.0)
    assert sorted(bench.ends) == sorted([*slow, *others])
    assert not bench.desk.room.holds.still


def test_a_client_that_takes_nothing_of_one_model_gets_jobs_of_others_done(
    bench: JobBench,
) -> None:
    bench.transcriber(2, "n2")
    for _ in range(4):
        bench.desk.hold(bench.submit(client=b"a"), held=True)
    for start in bench.starts(1):
        for seq in range(FIRST_PARTS):
            bench.part(1, start, seq)
    bench.submit(client=b"a")
    bench.submit(kind="transcribe", model=WHISPER, client=b"a")
    assert (len(bench.starts(1)), len(bench.starts(2))) == (4, 1)


def test_jobs_of_a_client_that_reads_again_begin(bench: JobBench) -> None:
    bench.core.client_stalled(b"a")
    for _ in range(5):
        bench.submit(client=b"a")
    for start in bench.starts(1):
        for seq in range(FIRST_PARTS):
            bench.part(1, start, seq)
    bench.encoder(2, "n2")
    assert len(bench.starts(2)) == 0
    bench.core.client_reads(b"a", bench.now)
    bench.settle()
    assert (len(bench.granted(1)), len(bench.starts(2))) == (4, 1)


@pytest.mark.parametrize("seq", [1, 16])
def test_parts_out_of_place_end_the_link(bench: JobBench, seq: int) -> None:
    bench.submit()
    (start,) = bench.starts(1)
    bench.desk.hold(1, held=True)
    for before in range(seq if seq > 1 else 0):
        bench.part(1, start, before)
    bench.part(1, start, seq)
    assert bench.closed[-1][0] == 1


def test_an_end_before_its_parts_ends_the_link(bench: JobBench) -> None:
    bench.submit()
    bench.end(1, bench.starts(1)[0], parts=1)
    assert [link for link, _ in bench.closed] == [1]
    assert bench.ends == {}


def test_cancel_tells_the_node_and_frees_its_place(bench: JobBench) -> None:
    jobs = [bench.submit() for _ in range(MAX_IN_FLIGHT + 2)]
    bench.desk.cancel(jobs[0], bench.now)
    bench.desk.cancel(jobs[-1], bench.now)
    bench.wait(0.0)
    starts = bench.starts(1)
    assert bench.cancels(1) == [starts[0].job]
    assert len(starts) == MAX_IN_FLIGHT + 1
    bench.part(1, starts[0], 0)
    assert (bench.got, bench.ends) == ({}, {})


def test_a_client_that_is_gone_ends_its_jobs_and_no_others(bench: JobBench) -> None:
    for client in (CLIENT, b"d", b""):
        bench.submit(client=client)
    bench.core.client_gone(CLIENT, bench.now)
    bench.core.client_gone(b"", bench.now)
    bench.settle()
    assert bench.cancels(1) == [bench.starts(1)[0].job]


def test_the_wall_budget_ends_a_job_wherever_it_is(bench: JobBench) -> None:
    running = bench.submit(wall_ms=2000)
    for _ in range(MAX_IN_FLIGHT - 1):
        bench.submit()
    waiting = bench.submit(wall_ms=3000)
    assert bench.starts(1)[0].wall_ms == 2000
    bench.wait(2.5)
    assert error_of(bench, running).code == "expired"
    assert bench.starts(1)[-1].wall_ms == 1000
    bench.wait(1.0)
    assert error_of(bench, waiting).code == "expired"
    assert len(bench.cancels(1)) == 2


def test_a_drained_node_begins_no_job(bench: JobBench) -> None:
    bench.op("node.drain", name="n1")
    bench.wait(11.0)
    bench.submit()
    assert bench.starts(1) == []
    assert error_of(bench, 0).details == {"nodes": {"n1": "is draining"}}


def test_a_node_is_drained_when_its_last_job_has_ended(bench: JobBench) -> None:
    bench.submit()
    bench.op("node.drain", name="n1")
    assert [bench.replies[-1][key] for key in ("state", "jobs")] == ["draining", 1]
    bench.end(1, bench.starts(1)[0])
    bench.op("nodes")
    (node,) = bench.replies[-1]["nodes"]
    assert (node["state"], node["jobs"]) == ("drained", 0)


def test_what_waits_is_in_the_models_report(bench: JobBench) -> None:
    for _ in range(MAX_IN_FLIGHT + 3):
        bench.submit()
    bench.op("models")
    queued = {model["name"]: model["queued"] for model in bench.replies[-1]["models"]}
    assert queued == {"enc": 3, "toy": 0}
    bench.op("status")
    assert bench.replies[-1]["jobs"] == {"running": MAX_IN_FLIGHT, "queued": 3}


def test_jobs_of_models_do_not_wait_for_each_other(bench: JobBench) -> None:
    for _ in range(MAX_IN_FLIGHT + 1):
        bench.submit()
    bench.node(2, "toys")
    bench.submit("tokenizer", ModelName("toy"))
    assert [start.model for start in bench.starts(2)] == ["toy"]
    assert len(bench.starts(1)) == MAX_IN_FLIGHT
    assert bench.desk.counts() == {ENCODER: 1}


def test_names_of_models_that_nobody_has_leave_nothing_behind(bench: JobBench) -> None:
    kept = bench.submit(body=packed(inputs=[]))
    for number in range(2 * MAX_IDLE_LINES):
        other = bench.submit(model=ModelName(f"none-{number}"))
        bench.desk.cancel(other, bench.now)
    assert len(bench.desk._lines) <= MAX_IDLE_LINES
    (start,) = bench.starts(1)
    bench.part(1, start, 0)
    bench.end(1, start, 1)
    assert isinstance(bench.ends[kept], JobDone)
