"""The jobs of one node: what the head asked for, and what came of it so far. Pure.

    JobStart ──▶ runs ──end──▶ parts wait until the head takes them ──JobEnd──▶ gone
                  │ └──fail──JobEnd with a code──▶ gone
                  └── JobCancel, or the link is lost: the handler is told ──▶ gone

A handler for each kind does the work. A job belongs to one link, whose messages all come and come
in order, so nothing is kept that was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bus.errors import Internal, QueueFull, SuperfluidError
from bus.ids import GenerationId, ModelName
from bus.messages.link_jobs import (
    FIRST_PARTS,
    MAX_PART_BYTES,
    UNKNOWN_KIND,
    WORKER_BEHIND,
    WORKER_LOST,
    JobCancel,
    JobEnd,
    JobMore,
    JobPart,
    JobStart,
)
from bus.messages.parts import BlobRef

#: Jobs that a node has at once, and bytes of parts that they have ready together.
MAX_JOBS = 256
MAX_READY_BYTES = 128 * 1024 * 1024
#: Characters of a message; a head reads 2,048 bytes at most, and a character has up to four.
_LONGEST = 500
_NO_BODY = b"\x80"

#: Gives the paths of a job's files, in their order; raises a SuperfluidError when one is not there.
FilesOf = Callable[[tuple[BlobRef, ...]], tuple[str, ...]]


class JobHandler:
    """Does the jobs of one kind. Driven by the node's core; a call does not wait for anything."""

    def start(self, job: RunningJob, now: float) -> None:
        """Begin with a job, and give its parts and its end through it, now or later.

        Raises:
            SuperfluidError: it can not be done here; the head hears why.
        """
        raise NotImplementedError

    def cancelled(self, job: RunningJob) -> None:
        """Nobody waits for the job any more; what it still gives is passed over."""

    def worker_said(self, job: RunningJob, message: Any, now: float) -> None:
        """A worker's message (`JOB_REPLIES` of bus/messages/worker.py) about a job of this kind."""


class RunningJob:
    """One job, as its handler has it. After its end, whatever it is given is passed over.

    Attributes:
        number: of the job; messages to and from the worker about it carry it.
        body: as `JobStart` has it.
        files: paths of the files that it names.
        needs_worker: the model's worker has it, and it ends when that dies. Set by the handler.
    """

    __slots__ = (
        "_jobs",
        "allowed",
        "blobs",
        "body",
        "done",
        "files",
        "handler",
        "is_over",
        "kind",
        "model",
        "needs_worker",
        "number",
        "qos",
        "ready",
        "sent",
        "source",
        "wall_ms",
    )

    def __init__(
        self, jobs: NodeJobs, start: JobStart, handler: JobHandler, files: tuple[str, ...]
    ) -> None:
        self._jobs = jobs
        self.handler = handler
        self.number = start.job
        self.model = start.model
        self.kind = start.kind
        self.body = start.body
        self.blobs = start.blobs
        self.files = files
        self.qos = start.qos
        self.wall_ms = start.wall_ms
        self.needs_worker = False
        #: Parts that may be sent before the head takes more, and those that were.
        self.allowed = FIRST_PARTS
        self.sent = 0
        self.ready: deque[bytes] = deque()
        #: Makes further parts when they may be sent.
        self.source: Iterator[bytes] | None = None
        #: The body of its end, once all parts are known.
        self.done: bytes | None = None
        self.is_over = False

    @property
    def at_worker(self) -> bool:
        """Whether the model's worker has work to do for it."""
        return self.needs_worker and self.done is None

    def part(self, body: bytes) -> None:
        """Give one more part, of at most `MAX_PART_BYTES`."""
        self._jobs.add_part(self, body)

    def parts_from(self, source: Iterator[bytes], end: bytes = _NO_BODY) -> None:
        """Give parts from an iterator, each when it may be sent, and end the job after the last.

        What it raises of SuperfluidError fails the job.
        """
        self.source = source
        self.end(end)

    def end(self, body: bytes = _NO_BODY) -> None:
        """All parts were given: the job is done."""
        if self.done is None:
            self.done = body
            self._jobs.pump(self)

    def fail(self, error: SuperfluidError) -> None:
        """The job can not be done; parts that were not sent are dropped."""
        length, limit = error.details.get("length", 0), error.details.get("max", 0)
        self.refuse(error.code, error.message, error.param or "", length=length, limit=limit)

    def refuse(
        self, code: str, message: str, param: str = "", *, length: int = 0, limit: int = 0
    ) -> None:
        """The same with a code that is of no error, or that a worker gave."""
        shown = message if len(message) <= _LONGEST else message[:_LONGEST] + "..."
        self._jobs.finish(
            self,
            JobEnd(
                job=self.number, code=code, message=shown, param=param, length=length, max=limit
            ),
        )


@dataclass(slots=True)
class NodeJobs:
    """Owned by the node's core.

    Invariant: `_jobs` has exactly the jobs that the head of the present link waits for;
    `_ready_bytes` is the length of all their parts that are ready.

    Args:
        handlers: by kind.
        send: takes messages for the head.
        files_of: finds the files of a job.
    """

    handlers: Mapping[str, JobHandler]
    send: Callable[[object], None]
    files_of: FilesOf
    _jobs: dict[GenerationId, RunningJob] = field(default_factory=dict)
    _ready_bytes: int = 0

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    def runs_on(self, model: ModelName) -> bool:
        """Whether a model's worker has a job. What waits for the head alone is not there."""
        return any(job.model == model and job.at_worker for job in self._jobs.values())

    def blobs_in_use(self) -> set[bytes]:
        """Hashes of the files that jobs name."""
        return {blob.sha256 for job in self._jobs.values() for blob in job.blobs}

    # --- the head -----------------------------------------------------------------------------

    def receive(self, message: object, now: float) -> bool:
        """Take a message of the head; False when it is not about jobs."""
        match message:
            case JobStart():
                self._start(message, now)
            case JobMore(job=number, parts=parts):
                if (job := self._jobs.get(number)) is not None:
                    job.allowed = max(job.allowed, parts)
                    self.pump(job)
            case JobCancel(job=number):
                if (job := self._jobs.get(number)) is not None:
                    self._drop(job)
            case _:
                return False
        return True

    def link_down(self) -> None:
        """The head that waited is gone; it asks again for what it still wants."""
        for job in list(self._jobs.values()):
            self._drop(job)

    def _start(self, start: JobStart, now: float) -> None:
        if start.job in self._jobs:
            return
        handler = self.handlers.get(start.kind)
        if handler is None:
            have = ", ".join(sorted(self.handlers)) or "none"
            why = f"its version does no jobs of kind {start.kind} (it does: {have}); update it"
            self.send(JobEnd(job=start.job, code=UNKNOWN_KIND, message=why))
            return
        try:
            job = RunningJob(self, start, handler, self._files(start))
        except SuperfluidError as error:
            self.send(JobEnd(job=start.job, code=error.code, message=error.message[:_LONGEST]))
            return
        self._jobs[start.job] = job
        try:
            job.handler.start(job, now)
        except SuperfluidError as error:
            job.fail(error)

    def _files(self, start: JobStart) -> tuple[str, ...]:
        if len(self._jobs) >= MAX_JOBS:
            raise QueueFull(f"this node has {MAX_JOBS} jobs; ask again later", retry_after_ms=1000)
        return self.files_of(start.blobs) if start.blobs else ()

    # --- workers ------------------------------------------------------------------------------

    def worker_said(self, number: GenerationId, message: object, now: float) -> None:
        """A worker's message about a job; of one that is over it is passed over."""
        if (job := self._jobs.get(number)) is not None and job.needs_worker:
            job.handler.worker_said(job, message, now)

    def not_sent(self, number: GenerationId, why: str) -> None:
        """A job did not reach the worker, which takes nothing at present."""
        if (job := self._jobs.get(number)) is not None:
            job.refuse(WORKER_BEHIND, why)

    def worker_gone(self, model: ModelName, reason: str) -> None:
        """A model's worker is gone, with all jobs that it had."""
        for job in list(self._jobs.values()):
            if job.model == model and job.at_worker:
                job.refuse(WORKER_LOST, reason)

    # --- for the jobs -------------------------------------------------------------------------

    def add_part(self, job: RunningJob, body: bytes) -> None:
        """Send a part when the head takes it."""
        if job.is_over or job.done is not None:
            return
        self._ready_bytes += len(body)
        job.ready.append(body)
        self.pump(job)
        if self._ready_bytes > MAX_READY_BYTES:
            why = f"results of {MAX_READY_BYTES} bytes wait for the head; ask again later"
            job.fail(QueueFull(why, retry_after_ms=1000))

    def pump(self, job: RunningJob) -> None:
        """Send what may be sent, and the end after the last part."""
        try:
            while not job.is_over and job.sent < job.allowed:
                body = self._take(job)
                if body is not None:
                    self.send(JobPart(job=job.number, seq=job.sent, body=_fitting(body)))
                    job.sent += 1
                elif job.done is not None:
                    end = JobEnd(job=job.number, parts=job.sent, body=_fitting(job.done))
                    self.finish(job, end)
                else:
                    return
        except SuperfluidError as error:
            job.fail(error)

    def _take(self, job: RunningJob) -> bytes | None:
        """The next part that is ready or can be made; None for none now."""
        if job.ready:
            body = job.ready.popleft()
            self._ready_bytes -= len(body)
            return body
        return None if job.source is None else next(job.source, None)

    def finish(self, job: RunningJob, end: JobEnd) -> None:
        """Say the end of a job, once."""
        if not job.is_over:
            self._forget(job)
            self.send(end)

    def _drop(self, job: RunningJob) -> None:
        self._forget(job)
        job.handler.cancelled(job)

    def _forget(self, job: RunningJob) -> None:
        del self._jobs[job.number]
        job.is_over = True
        self._ready_bytes -= sum(map(len, job.ready))
        job.ready.clear()

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        for job in self._jobs.values():
            if job.is_over or job.sent > job.allowed:
                raise ValueError(f"job {job.number} is over, or has sent more than it may")
        if self._ready_bytes != sum(len(b) for job in self._jobs.values() for b in job.ready):
            raise ValueError("the bytes that are ready are counted wrong")


def _fitting(body: bytes) -> bytes:
    """A body that the head takes.

    Raises:
        Internal: it is too long.
    """
    if len(body) > MAX_PART_BYTES:
        raise Internal(f"a part of {len(body)} bytes; at most {MAX_PART_BYTES} travel")
    return body
