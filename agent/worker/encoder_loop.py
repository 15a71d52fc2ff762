"""The loop of a worker process whose model is an encoder: texts in, vectors out."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent.worker.encoder import Encoder
from agent.worker.job_loop import JobLoop
from agent.worker.mailbox import Pipe
from agent.worker.refusal import embed_failed, hears_nothing, transcribe_failed
from bus.errors import Internal, Invalid, SuperfluidError
from bus.ids import GenerationId
from bus.log import EventLog
from bus.messages.worker import Embed, Transcribe, WorkerStats

log = EventLog(__name__)


class EncoderWorker(JobLoop):
    """Drives an encoder for an agent.

    Args:
        pipe: to the agent.
        encoder: with its model loaded.
        clock: gives `now`.
    """

    def __init__(self, pipe: Pipe, encoder: Encoder, clock: Callable[[], float]) -> None:
        super().__init__(pipe, clock)
        self._encoder = encoder
        self._queue = encoder.make_queue()
        self._runs = 0
        self._tokens = 0
        self._busy_s = 0.0

    @property
    def idle(self) -> bool:
        return self._queue.idle

    def stats(self) -> WorkerStats:
        """Counters since the start, and what holds now: a run is a step, its tokens a prefill."""
        return WorkerStats(
            steps=self._runs,
            prefill_tokens=self._tokens,
            prefill_busy_s=self._busy_s,
            queued=self._queue.waiting,
            phase="idle" if self.idle else "prefill",
        )

    def _turn(self) -> None:
        batch = self._queue.next_batch()
        if not batch:
            return
        start = time.perf_counter()
        error = Internal(
            f"model {self._encoder.folder.name} gives vectors that are no numbers; import it again"
        )
        vectors: list[bytes | None] = [None] * len(batch)
        try:
            vectors = self._encoder.vectors(batch)
        except Internal as failure:
            log.error("run_failed", error=failure)
            error = failure
        self._busy_s += time.perf_counter() - start
        self._runs += 1
        self._tokens += sum(len(piece.ids) for piece in batch)
        whole, lost = self._queue.done(batch, vectors)
        for reply in (*whole, *(embed_failed(job, error) for job in lost)):
            self.post(reply)

    def _start(self, request: Embed | Transcribe) -> None:
        if isinstance(request, Transcribe):
            error = hears_nothing(self._encoder.folder.name)
            self.post(transcribe_failed(request.job, error))
            return
        try:
            self._queue.submit(request)
        except SuperfluidError as error:
            self.post(embed_failed(request.job, error))

    def _cancel(self, job: GenerationId) -> None:
        self._queue.cancel(job)

    def _no_text(self) -> Invalid:
        return Invalid(
            f"model {self._encoder.folder.name} makes vectors and no text; choose a model that "
            "generates, or ask this one for embeddings",
            param="model",
        )
