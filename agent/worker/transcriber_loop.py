"""The loop of a worker process whose model is a transcriber: audio files in, segments out.

Jobs take turns, a window each, so that a short file waits for no long one. A turn is some tokens of
a window, so that the agent is heard often; a window's segments leave when it is whole.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.worker.audio_source import AudioSource
from agent.worker.job_loop import JobLoop
from agent.worker.mailbox import Pipe
from agent.worker.refusal import embed_failed, transcribe_failed
from agent.worker.transcriber import Transcriber
from agent.worker.transcription import Transcription
from bus.errors import Internal, Invalid, QueueFull, SuperfluidError
from bus.ids import GenerationId
from bus.log import EventLog
from bus.messages.worker import Embed, Transcribe, Transcribed, TranscribedWindow, WorkerStats

log = EventLog(__name__)

#: Jobs at once; each has a process that decodes its file.
MAX_JOBS = 8


class TranscriberWorker(JobLoop):
    """Drives a transcriber for an agent.

    Args:
        pipe: to the agent.
        transcriber: with its model loaded.
        vocabulary: what each token adds to a text.
        clock: gives `now`.
    """

    def __init__(
        self,
        pipe: Pipe,
        transcriber: Transcriber,
        vocabulary: Sequence[bytes],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(pipe, clock)
        self._transcriber = transcriber
        self._vocabulary = vocabulary
        #: The one whose turn it is first.
        self._jobs: deque[Transcription] = deque()
        self._steps = 0
        self._tokens = 0
        self._busy_s = 0.0

    @property
    def idle(self) -> bool:
        return not self._jobs

    def stats(self) -> WorkerStats:
        """Counters since the start, and what holds now: a turn is a step, what it writes decode."""
        return WorkerStats(
            steps=self._steps,
            decode_tokens=self._tokens,
            decode_busy_s=self._busy_s,
            queued=len(self._jobs),
            phase="idle" if self.idle else "decode",
        )

    def run(self) -> None:
        """Work until the agent says stop; the processes that decode files end with it."""
        try:
            super().run()
        finally:
            for job in self._jobs:
                job.close()

    def _turn(self) -> None:
        if not self._jobs:
            return
        job, start = self._jobs[0], time.perf_counter()
        written = job.written
        try:
            told = job.step()
        except SuperfluidError as error:
            if isinstance(error, Internal):
                log.error("run_failed", error=error)
            self._forget(job)
            self.post(transcribe_failed(job.job, error))
            return
        if told is not None or job.in_window:
            self._steps += 1
            self._busy_s += time.perf_counter() - start
        self._tokens += job.written - written
        match told:
            case Transcribed():
                self._forget(job)
                self.post(told)
            case TranscribedWindow():
                self.post(told)
        if self._jobs and self._jobs[0] is job and not job.in_window:
            self._jobs.rotate(-1)

    def _forget(self, job: Transcription) -> None:
        self._jobs.remove(job)
        job.close()

    def _start(self, request: Embed | Transcribe) -> None:
        if isinstance(request, Embed):
            self.post(embed_failed(request.job, self._no_text()))
            return
        if any(job.job == request.job for job in self._jobs):
            return
        try:
            self._transcriber.check_language(request.language)
            if len(self._jobs) >= MAX_JOBS:
                raise QueueFull(
                    f"this node transcribes {MAX_JOBS} files already; try again later",
                    retry_after_ms=1000,
                )
            source = AudioSource(Path(request.file), from_s=request.from_s)
        except SuperfluidError as error:
            self.post(transcribe_failed(request.job, error))
            return
        self._jobs.append(
            Transcription(
                request.job,
                source,
                self._transcriber,
                self._text,
                language=request.language,
                from_s=request.from_s,
            )
        )

    def _cancel(self, job: GenerationId) -> None:
        for mine in [mine for mine in self._jobs if mine.job == job]:
            self._forget(mine)

    def _text(self, tokens: Sequence[int]) -> str:
        return b"".join(self._vocabulary[token] for token in tokens).decode("utf-8", "replace")

    def _no_text(self) -> Invalid:
        return Invalid(
            f"model {self._transcriber.folder.name} transcribes speech and makes nothing of text; "
            "choose a model that generates, or an encoder for embeddings",
            param="model",
        )
