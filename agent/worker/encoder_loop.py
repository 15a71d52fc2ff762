"""The loop of a worker process whose model is an encoder: texts in, vectors out."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent.worker.encoder import Encoder
from agent.worker.loop import WorkerLoop
from agent.worker.mailbox import Pipe
from agent.worker.parking import refuse
from agent.worker.refusal import embed_failed, hears_nothing, transcribe_failed
from bus.errors import Internal, Invalid, SuperfluidError
from bus.log import EventLog
from bus.messages.worker import (
    Cancel,
    Embed,
    Forget,
    Park,
    Pause,
    Ping,
    Pong,
    Restore,
    Resume,
    Submit,
    Transcribe,
    WorkerStats,
)

log = EventLog(__name__)


class EncoderWorker(WorkerLoop):
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

    def _wait_s(self) -> float | None:
        return None if self.idle else 0.0

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

    def _handle(self, message: object) -> None:
        match message:
            case Embed():
                self._submit(message)
            case Submit():
                self._refuse(message, self._no_text())
            case Transcribe(job=job):
                self.post(transcribe_failed(job, hears_nothing(self._encoder.folder.name)))
            case Cancel():
                self._queue.cancel(message.generation)
            case Pause() | Resume():
                pass  # Of a generation, and there is none.
            case Park() | Restore() | Forget():
                if (reply := refuse(message)) is not None:
                    self.post(reply)
            case Ping():
                self.post(Pong(nonce=message.nonce, stats=self.stats()))
            case _:
                log.error("message_unexpected", kind=type(message).__name__)

    def _submit(self, embed: Embed) -> None:
        try:
            self._queue.submit(embed)
        except SuperfluidError as error:
            self.post(embed_failed(embed.job, error))

    def _no_text(self) -> Invalid:
        return Invalid(
            f"model {self._encoder.folder.name} makes vectors and no text; choose a model that "
            "generates, or ask this one for embeddings",
            param="model",
        )
