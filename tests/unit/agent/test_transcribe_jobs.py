"""Transcripts in the node's core: what the worker is asked, what the head hears."""

from __future__ import annotations

from typing import Any

import pytest

from agent.actions import SendToWorker
from agent.served_model import ServedModel
from agent.worker_jobs import TranscribeJobs
from bus.agent_jobs import NodeJobs
from bus.ids import GenerationId, ModelName
from bus.messages import worker
from bus.messages.job_bodies import (
    TranscribeBody,
    TranscribeEnd,
    TranscribePart,
    pack_body,
    unpack_body,
)
from bus.messages.link_jobs import JobCancel, JobEnd, JobPart, JobStart
from bus.messages.parts import BlobRef
from bus.messages.worker import SpokenSegment

MODEL, JOB = ModelName("whisper"), GenerationId(5)
BLOB = BlobRef(sha256=bytes(32), length=9)


class Rig:
    """A node's jobs with a transcriber that is ready; `sent` and `done` keep what came out."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.done: list[Any] = []
        model = ServedModel(name=MODEL, phase="ready")
        handler = TranscribeJobs({MODEL: model}, self.done.append)
        self.jobs = NodeJobs(
            {"transcribe": handler}, self.sent.append, lambda blobs: ("/files/a",) * len(blobs)
        )

    def ask(self, body: object = TranscribeBody(), blobs: tuple[BlobRef, ...] = (BLOB,)) -> None:
        packed = body if isinstance(body, bytes) else pack_body(body)
        start = JobStart(job=JOB, model=MODEL, kind="transcribe", body=packed, blobs=blobs)
        self.jobs.receive(start, 0.0)

    def say(self, message: object) -> None:
        self.jobs.worker_said(JOB, message, 0.0)


def test_the_worker_gets_the_file_and_windows_are_parts() -> None:
    rig = Rig()
    rig.ask(TranscribeBody(language="en", from_s=28.02))
    request = worker.Transcribe(job=JOB, file="/files/a", language="en", from_s=28.02)
    assert rig.done == [SendToWorker(model=MODEL, message=request)]
    segment = SpokenSegment(start_s=28.5, end_s=30.0, text="Hello")
    rig.say(worker.TranscribedWindow(job=JOB, segments=(segment,), next_s=58.0, language="en"))
    rig.say(worker.Transcribed(job=JOB, language="en", duration_s=58.01))
    part, end = rig.sent
    assert isinstance(part, JobPart)
    assert unpack_body(TranscribePart, part.body) == TranscribePart(
        segments=(segment,), next_s=58.0, language="en"
    )
    known = pack_body(TranscribeEnd(language="en", duration_s=58.01))
    assert end == JobEnd(job=JOB, parts=1, body=known)


def test_the_workers_refusal_is_passed_on() -> None:
    rig = Rig()
    rig.ask()
    rig.say(
        worker.TranscribeFailed(
            job=JOB, code="too_large", message="20000 s", param="file", length=20_000, max=14_400
        )
    )
    assert rig.sent == [
        JobEnd(
            job=JOB, code="too_large", message="20000 s", param="file", length=20_000, max=14_400
        )
    ]


@pytest.mark.parametrize(
    ("body", "blobs", "code"),
    [
        (TranscribeBody(), (), "invalid"),
        (TranscribeBody(), (BLOB, BLOB), "invalid"),
        (b"\x90", (BLOB,), "invalid"),
        (b"\x81\xa6from_s\xcb\xbf\xf0\0\0\0\0\0\0", (BLOB,), "invalid"),
        (b"", (BLOB,), "decode"),
    ],
)
def test_what_is_no_job_is_refused(body: object, blobs: tuple[BlobRef, ...], code: str) -> None:
    rig = Rig()
    rig.ask(body, blobs)
    (end,) = rig.sent
    assert end.code == code
    assert rig.done == []


def test_a_cancel_reaches_the_worker_and_ends_all() -> None:
    rig = Rig()
    rig.ask()
    rig.jobs.receive(JobCancel(job=JOB), 0.0)
    assert rig.done[-1] == SendToWorker(model=MODEL, message=worker.Cancel(generation=JOB))
    rig.say(worker.Transcribed(job=JOB, language="en", duration_s=1.0))
    assert rig.sent == []
