"""The loop of a worker process whose model is an encoder: texts in, vectors out.

As the loop of decoders (`agent.worker.runner`): between any two runs the pipe is emptied, with
nothing to run it blocks on the pipe, and while it works the agent hears its counters each second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from agent.worker.encoder import Encoder
from agent.worker.mailbox import SEND_RETRY_S, Mailbox, Pipe
from agent.worker.parking import refuse
from agent.worker.refusal import embed_failed, refused_run
from bus.errors import Internal, Invalid, SuperfluidError
from bus.log import EventLog
from bus.messages.worker import (
    UNASKED,
    Accepted,
    Cancel,
    Embed,
    Forget,
    Output,
    Park,
    Pause,
    Ping,
    Pong,
    Restore,
    Resume,
    Stop,
    Submit,
    WorkerStats,
)

log = EventLog(__name__)

#: While there is work, the agent is told of progress at least this often, between two runs.
REPORT_S = 1.0


class EncoderWorker:
    """Drives an encoder for an agent.

    Args:
        pipe: to the agent.
        encoder: with its model loaded.
        clock: gives `now`.
    """

    def __init__(self, pipe: Pipe, encoder: Encoder, clock: Callable[[], float]) -> None:
        self._mailbox = Mailbox(pipe)
        self._encoder = encoder
        self._queue = encoder.make_queue()
        self._clock = clock
        self._stopped = False
        self._report_at = 0.0
        self._runs = 0
        self._tokens = 0
        self._busy_s = 0.0

    def run(self) -> None:
        """Work until the agent says stop."""
        while not self._stopped:
            self._receive(self._wait_s())
            self._mailbox.send()
            if not self._mailbox.is_full:
                self._report()
                self._turn()

    def post(self, message: object) -> None:
        """Send a message, or keep it until the pipe takes it."""
        self._mailbox.post(message)

    def stats(self) -> WorkerStats:
        """Counters since the start, and what holds now: a run is a step, its tokens a prefill."""
        return WorkerStats(
            steps=self._runs,
            prefill_tokens=self._tokens,
            prefill_busy_s=self._busy_s,
            queued=self._queue.waiting,
            phase="idle" if self._queue.idle else "prefill",
        )

    def _receive(self, wait_s: float | None) -> None:
        for message in self._mailbox.receive(wait_s):
            self._handle(message)
            if self._stopped:
                return

    def _wait_s(self) -> float | None:
        if self._mailbox.is_full:
            return SEND_RETRY_S
        return None if self._queue.idle else 0.0

    def _report(self) -> None:
        now = self._clock()
        if self._queue.idle:
            self._report_at = now
        elif now >= self._report_at:
            self._report_at = now + REPORT_S
            self.post(Pong(nonce=UNASKED, stats=self.stats()))

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
                self._refuse(message)
            case Cancel():
                self._queue.cancel(message.generation)
            case Pause() | Resume():
                pass  # Of a generation, and there is none.
            case Park() | Restore() | Forget():
                if (reply := refuse(message)) is not None:
                    self.post(reply)
            case Ping():
                self.post(Pong(nonce=message.nonce, stats=self.stats()))
            case Stop():
                self._stopped = True
            case _:
                log.error("message_unexpected", kind=type(message).__name__)

    def _submit(self, embed: Embed) -> None:
        try:
            self._queue.submit(embed)
        except SuperfluidError as error:
            self.post(embed_failed(embed.job, error))

    def _refuse(self, submit: Submit) -> None:
        error = Invalid(
            f"model {self._encoder.folder.name} makes vectors and no text; choose a model that "
            "generates, or ask this one for embeddings",
            param="model",
        )
        self.post(Accepted(generation=submit.generation))
        self.post(Output(runs=(refused_run(submit, error),), stats=self.stats()))
