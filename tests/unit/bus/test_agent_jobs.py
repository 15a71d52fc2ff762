"""A node's side of jobs: parts within what the head takes, one end, nothing after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bus.agent_jobs import MAX_JOBS, MAX_READY_BYTES, JobHandler, NodeJobs, RunningJob
from bus.errors import BlobMissing, ContextLengthExceeded, Invalid
from bus.ids import GenerationId, ModelName
from bus.messages.link import LINK
from bus.messages.link_jobs import (
    FIRST_PARTS,
    MAX_PART_BYTES,
    JobCancel,
    JobEnd,
    JobMore,
    JobPart,
    JobStart,
)
from bus.messages.parts import BlobRef

MODEL = ModelName("m")


class Recorder(JobHandler):
    """Keeps the jobs that it is given, for the test to answer them."""

    def __init__(self) -> None:
        self.jobs: list[RunningJob] = []
        self.cancels: list[int] = []
        self.heard: list[object] = []
        self.refuses: Exception | None = None

    def start(self, job: RunningJob, now: float) -> None:
        if self.refuses is not None:
            raise self.refuses
        job.needs_worker = job.kind == "worker"
        self.jobs.append(job)

    def cancelled(self, job: RunningJob) -> None:
        self.cancels.append(job.number)

    def worker_said(self, job: RunningJob, message: Any, now: float) -> None:
        self.heard.append(message)


class Rig:
    """A node's jobs, checked after every step."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.handler = Recorder()
        handlers = {"plain": self.handler, "worker": self.handler}
        self.jobs = NodeJobs(handlers, self.sent.append, self.files_of)
        self.numbers = iter(range(1, 10_000))

    def files_of(self, blobs: tuple[BlobRef, ...]) -> tuple[str, ...]:
        if any(blob.length == 0 for blob in blobs):
            raise BlobMissing("it is not here")
        return tuple(f"/blobs/{blob.sha256.hex()}" for blob in blobs)

    def start(self, kind: str = "plain", **fields: Any) -> RunningJob:
        number = GenerationId(next(self.numbers))
        self.say(JobStart(job=number, model=MODEL, kind=kind, **fields))
        return self.handler.jobs[-1]

    def say(self, message: object) -> None:
        assert self.jobs.receive(message, 0.0)
        self.check()

    def check(self) -> None:
        self.jobs.validate_state()
        for message in self.sent:
            assert LINK.decode(LINK.encode(message)) == message

    def take(self) -> list[Any]:
        self.check()
        taken = list(self.sent)
        self.sent.clear()
        return taken


@pytest.fixture
def rig() -> Rig:
    return Rig()


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages if isinstance(message, JobPart)]


def test_parts_go_at_once_and_the_end_counts_them(rig: Rig) -> None:
    job = rig.start(body=b"\x81\xa1a\x01", qos=3, wall_ms=500)
    assert (job.model, job.kind, job.body, job.qos, job.wall_ms) == (
        *("m", "plain", b"\x81\xa1a\x01", 3, 500),
    )
    job.part(b"a")
    job.part(b"b")
    assert rig.take() == [
        JobPart(job=job.number, seq=0, body=b"a"),
        JobPart(job=job.number, seq=1, body=b"b"),
    ]
    job.end(b"z")
    assert rig.take() == [JobEnd(job=job.number, parts=2, body=b"z")]
    assert not rig.jobs.is_busy
    job.part(b"c")
    job.end()
    job.fail(Invalid("late"))
    assert rig.take() == []


def test_no_more_parts_than_the_head_takes(rig: Rig) -> None:
    job = rig.start()
    for number in range(FIRST_PARTS + 3):
        job.part(bytes([number]))
    job.end()
    assert len(rig.take()) == FIRST_PARTS
    rig.say(JobMore(job=job.number, parts=FIRST_PARTS + 2))
    assert bodies(rig.take()) == [bytes([FIRST_PARTS]), bytes([FIRST_PARTS + 1])]
    rig.say(JobMore(job=job.number, parts=3))  # Never taken back, and no more either.
    assert rig.take() == []
    rig.say(JobMore(job=job.number, parts=FIRST_PARTS + 4))
    *_, end = rig.take()
    assert end == JobEnd(job=job.number, parts=FIRST_PARTS + 3)


def test_parts_of_a_source_are_made_when_they_may_be_sent(rig: Rig) -> None:
    made: list[int] = []

    def source() -> Iterator[bytes]:
        for number in range(FIRST_PARTS + 2):
            made.append(number)
            yield bytes([number])

    job = rig.start()
    job.parts_from(source(), b"z")
    assert len(made) == FIRST_PARTS
    assert len(rig.take()) == FIRST_PARTS
    rig.say(JobMore(job=job.number, parts=100))
    assert rig.take()[-1] == JobEnd(job=job.number, parts=FIRST_PARTS + 2, body=b"z")


def test_a_source_that_fails_ends_the_job(rig: Rig) -> None:
    def source() -> Iterator[bytes]:
        yield b"a"
        raise BlobMissing("the file is gone")

    job = rig.start()
    job.parts_from(source())
    part, end = rig.take()
    assert part == JobPart(job=job.number, seq=0, body=b"a")
    assert (end.code, end.message) == ("blob_missing", "the file is gone")


@pytest.mark.parametrize("how", ["part", "end"])
def test_what_no_head_takes_is_an_error_and_not_sent(rig: Rig, how: str) -> None:
    job = rig.start()
    getattr(job, how)(bytes(MAX_PART_BYTES + 1))
    (end,) = rig.take()
    assert (end.code, rig.jobs.is_busy) == ("internal", False)


def test_what_waits_is_bounded(rig: Rig) -> None:
    job = rig.start()
    for _ in range(MAX_READY_BYTES // MAX_PART_BYTES + FIRST_PARTS + 1):
        job.part(bytes(MAX_PART_BYTES))
    assert rig.sent[-1].code == "queue_full"
    assert not rig.jobs.is_busy
    other = rig.start()
    other.part(b"a")
    assert rig.sent[-1].body == b"a"


def test_errors_say_their_parameter_and_figures(rig: Rig) -> None:
    job = rig.start()
    details = {"length": 9, "max": 5}
    job.fail(ContextLengthExceeded("é" * 600, param="input[3]", details=details))
    (end,) = rig.take()
    assert (end.code, end.param, end.length, end.max) == (
        *("context_length_exceeded", "input[3]", 9, 5),
    )
    assert end.message == "é" * 500 + "..."


def test_a_handler_may_refuse(rig: Rig) -> None:
    rig.handler.refuses = Invalid("it is no such body", param="body")
    rig.say(JobStart(job=GenerationId(1), model=MODEL, kind="plain"))
    (end,) = rig.take()
    assert (end.code, end.param, rig.jobs.is_busy) == ("invalid", "body", False)


def test_an_unknown_kind_is_told(rig: Rig) -> None:
    rig.say(JobStart(job=GenerationId(1), model=MODEL, kind="dance"))
    (end,) = rig.take()
    assert end.code == "unknown_kind"
    assert end.message == (
        "its version does no jobs of kind dance (it does: plain, worker); update it"
    )


def test_only_so_many_at_once(rig: Rig) -> None:
    for _ in range(MAX_JOBS):
        rig.start()
    rig.say(JobStart(job=GenerationId(9999), model=MODEL, kind="plain"))
    assert rig.take()[-1].code == "queue_full"


def test_a_start_that_comes_twice_changes_nothing(rig: Rig) -> None:
    job = rig.start()
    rig.say(JobStart(job=job.number, model=MODEL, kind="plain"))
    assert len(rig.handler.jobs) == 1
    assert rig.take() == []


def test_cancel_and_a_lost_link_tell_the_handler_and_nobody_else(rig: Rig) -> None:
    first, second, third = (rig.start("worker") for _ in range(3))
    rig.say(JobCancel(job=first.number))
    rig.say(JobCancel(job=first.number))
    assert rig.handler.cancels == [first.number]
    rig.jobs.link_down()
    assert rig.handler.cancels == [first.number, second.number, third.number]
    second.part(b"a")
    second.end()
    assert rig.take() == []
    rig.say(JobMore(job=second.number, parts=99))
    assert rig.take() == []


def test_files_are_found_before_the_job_begins(rig: Rig) -> None:
    blob = BlobRef(sha256=b"\x01" * 32, length=5)
    job = rig.start(blobs=(blob,))
    assert job.files == ("/blobs/" + "01" * 32,)
    assert rig.jobs.blobs_in_use() == {blob.sha256}
    missing = BlobRef(sha256=b"\x02" * 32, length=0)
    rig.say(JobStart(job=GenerationId(77), model=MODEL, kind="plain", blobs=(missing,)))
    (end,) = rig.take()
    assert (end.job, end.code) == (77, "blob_missing")
    job.end()
    assert rig.jobs.blobs_in_use() == set()


def test_a_worker_takes_its_jobs_along(rig: Rig) -> None:
    lost, not_its_own = rig.start("worker"), rig.start("plain")
    made = rig.start("worker")
    for _ in range(FIRST_PARTS + 1):
        made.part(b"a")
    made.end()
    rig.take()
    assert rig.jobs.runs_on(MODEL)
    assert not rig.jobs.runs_on(ModelName("other"))
    rig.jobs.worker_gone(ModelName("other"), "signal 9")
    assert rig.take() == []
    rig.jobs.worker_gone(MODEL, "signal 9")
    assert rig.take() == [JobEnd(job=lost.number, code="worker_lost", message="signal 9")]
    # All of this one is here, and the other never was at the worker: neither keeps the model.
    assert not rig.jobs.runs_on(MODEL)
    not_its_own.end()
    rig.say(JobMore(job=made.number, parts=99))
    assert [message.job for message in rig.take() if isinstance(message, JobEnd)] == [
        not_its_own.number,
        made.number,
    ]


def test_a_worker_is_heard_about_jobs_that_it_has(rig: Rig) -> None:
    job, plain = rig.start("worker"), rig.start("plain")
    for number in (job.number, plain.number, GenerationId(500)):
        rig.jobs.worker_said(number, f"about {number}", 0.0)
    assert rig.handler.heard == [f"about {job.number}"]
    rig.jobs.not_sent(job.number, "it takes nothing")
    assert rig.take() == [JobEnd(job=job.number, code="worker_behind", message="it takes nothing")]


def test_other_messages_are_for_others(rig: Rig) -> None:
    assert not rig.jobs.receive(JobEnd(job=GenerationId(1)), 0.0)
