"""Jobs that a model's worker does: what it is asked, and its answer in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agent.actions import Action, SendToWorker
from agent.served_model import ServedModel
from bus.agent_jobs import JobHandler, RunningJob
from bus.errors import Internal, Invalid
from bus.ids import ModelName
from bus.messages import worker
from bus.messages.job_bodies import (
    EmbedBody,
    EmbedEnd,
    EmbedPart,
    TranscribeBody,
    TranscribeEnd,
    TranscribePart,
    pack_body,
    unpack_body,
)
from bus.messages.link_jobs import MAX_PART_BYTES, MODEL_NOT_READY, MODEL_NOT_SERVED

#: Of a part that has vectors: what is around them.
_AROUND_BYTES = 256


class WorkerJobs(JobHandler):
    """What handlers of such kinds have in common.

    Args:
        models: what the node serves.
        do: takes actions of the node's core.
    """

    def __init__(
        self, models: Mapping[ModelName, ServedModel], do: Callable[[Action], None]
    ) -> None:
        self._models = models
        self._do = do

    def start(self, job: RunningJob, now: float) -> None:
        """Ask the model's worker, when one is ready; else the job is refused."""
        found = self._models.get(job.model)
        if (refusal := why_not(job.model, found)) is not None:
            job.refuse(*refusal)
            return
        request = self.request(job)
        job.needs_worker = True
        self._do(SendToWorker(model=job.model, message=request))

    def cancelled(self, job: RunningJob) -> None:
        if job.at_worker:
            self._do(SendToWorker(model=job.model, message=worker.Cancel(generation=job.number)))

    def request(self, job: RunningJob) -> object:
        """The message for the worker: one of `JOB_REQUESTS`.

        Raises:
            SuperfluidError: the job is not what it should be.
        """
        raise NotImplementedError


class EmbedJobs(WorkerJobs):
    """Texts to vectors."""

    def request(self, job: RunningJob) -> worker.Embed:
        body = unpack_body(EmbedBody, job.body)
        return worker.Embed(
            job=job.number,
            inputs=body.inputs,
            pooling=body.pooling,
            normalize=body.normalize,
        )

    def worker_said(self, job: RunningJob, message: Any, now: float) -> None:
        match message:
            case worker.Embedded(vectors=vectors, tokens=tokens):
                job.parts_from(embed_parts(vectors), pack_body(EmbedEnd(tokens=tokens)))
            case worker.EmbedFailed():
                _refuse(job, message)


class TranscribeJobs(WorkerJobs):
    """Audio to segments. A part is a whole window, so that another node can go on behind it."""

    def request(self, job: RunningJob) -> worker.Transcribe:
        body = unpack_body(TranscribeBody, job.body)
        if len(job.files) != 1:
            raise Invalid(f"{len(job.files)} files to transcribe; name one", param="blobs")
        return worker.Transcribe(
            job=job.number, file=job.files[0], language=body.language, from_s=body.from_s
        )

    def worker_said(self, job: RunningJob, message: Any, now: float) -> None:
        match message:
            case worker.TranscribedWindow(segments=segments, next_s=next_s, language=language):
                part = TranscribePart(segments=segments, next_s=next_s, language=language)
                job.part(pack_body(part))
            case worker.Transcribed(language=language, duration_s=duration_s):
                job.end(pack_body(TranscribeEnd(language=language, duration_s=duration_s)))
            case worker.TranscribeFailed():
                _refuse(job, message)


def _refuse(job: RunningJob, failed: worker.EmbedFailed | worker.TranscribeFailed) -> None:
    """Its worker did not do it, and says why."""
    job.refuse(failed.code, failed.message, failed.param, length=failed.length, limit=failed.max)


def embed_parts(vectors: Sequence[bytes]) -> Iterator[bytes]:
    """Parts with as many vectors as fit.

    Raises:
        Internal: they are no vectors of one length.
    """
    size = len(vectors[0]) if vectors else 0
    if not size or size % 4 or any(len(vector) != size for vector in vectors):
        raise Internal("the worker gave vectors of different lengths; its log may say more")
    in_a_part = (MAX_PART_BYTES - _AROUND_BYTES) // size
    for index in range(0, len(vectors), in_a_part):
        some = vectors[index : index + in_a_part]
        yield pack_body(
            EmbedPart(index=index, count=len(some), dimension=size // 4, vectors=b"".join(some))
        )


def why_not(model: ModelName, found: ServedModel | None) -> tuple[str, str] | None:
    """Why no worker of a model takes work here now: a code, and the reason; None when one does."""
    if found is None or found.is_unloading:
        return (
            MODEL_NOT_SERVED,
            f"this node does not serve {model}; load it there: sfctl model load {model} NODE",
        )
    if found.phase != "ready":
        because = f": {found.problem}" if found.problem else "; wait until it is ready"
        return MODEL_NOT_READY, f"{model} is {found.phase} on this node{because}"
    return None
