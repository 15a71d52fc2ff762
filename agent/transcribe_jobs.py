"""Jobs of a transcriber: an audio file that the head has put here, told a window a part."""

from __future__ import annotations

from typing import Any

from agent.worker_jobs import WorkerJobs
from bus.agent_jobs import RunningJob
from bus.errors import Invalid
from bus.messages import worker
from bus.messages.job_bodies import (
    TranscribeBody,
    TranscribeEnd,
    TranscribePart,
    pack_body,
    unpack_body,
)


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
                job.refuse(
                    message.code,
                    message.message,
                    message.param,
                    length=message.length,
                    limit=message.max,
                )
