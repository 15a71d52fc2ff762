"""The loop of a worker process whose model is a decoder: contexts in, tokens out.

A unit of its work is a turn of the engine: a chunk or a step. With nothing to run it still looks
now and then whether a grammar is built or a file of a session read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from agent.worker.loop import REPORT_S, WorkerLoop
from agent.worker.mailbox import Pipe
from agent.worker.output_buffer import OutputBuffer
from agent.worker.parking import Parking, refuse
from agent.worker.refusal import embed_failed, hears_nothing, rejected, transcribe_failed
from agent.worker.work import Emission
from bus.errors import Invalid, SuperfluidError
from bus.ids import GenerationId
from bus.log import EventLog
from bus.messages.worker import (
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
    Submit,
    Transcribe,
    WorkerStats,
)

log = EventLog(__name__)

#: How often to see whether a grammar is built or a file read, when there is nothing else to do.
POLL_S = 0.005
NO_FILES = "this model takes no files; leave blobs out, or choose a model that does"
#: Faults of these, and those without a parameter, may be none on another node.
_OF_THE_CONTEXT = frozenset({None, "", "prompt", "prompt_tokens", "segments"})


class TextEngine(Protocol):
    """What makes the text: an `Engine`, or a `DriverEngine` with other stages before it."""

    @property
    def model(self) -> str: ...

    @property
    def idle(self) -> bool: ...

    @property
    def building(self) -> bool: ...

    @property
    def step_s(self) -> float: ...

    def knows(self, generation: GenerationId) -> bool: ...

    def submit(self, submit: Submit, now: float) -> None: ...

    def cancel(self, generation: GenerationId) -> None: ...

    def pause(self, generation: GenerationId, now: float) -> None: ...

    def resume(self, generation: GenerationId) -> None: ...

    def next_deadline(self) -> float | None: ...

    def turn(self, now: float) -> list[Emission]: ...

    def stats(self) -> WorkerStats: ...

    def prefix_digests(self) -> tuple[bytes, ...]: ...


class Worker(WorkerLoop):
    """Drives an engine for an agent.

    Args:
        pipe: to the agent.
        engine: with its model loaded.
        clock: gives `now`.
        parking: None where sessions are not parked.
    """

    def __init__(
        self,
        pipe: Pipe,
        engine: TextEngine,
        clock: Callable[[], float],
        parking: Parking | None = None,
    ) -> None:
        super().__init__(pipe, clock)
        self._engine = engine
        self._parking = parking
        self._buffer = OutputBuffer()

    @property
    def idle(self) -> bool:
        return self._engine.idle

    @property
    def _has_work(self) -> bool:
        """Whether a turn would do something now."""
        return not self.idle

    def stats(self) -> WorkerStats:
        return self._engine.stats()

    def _turn(self) -> None:
        self._take(self._engine.turn(self._clock()))

    def _take(self, emissions: list[Emission]) -> None:
        now = self._clock()
        for emission in emissions:
            self._buffer.add(emission, now)
        for reply in self._parking.poll() if self._parking else ():
            self.post(reply)
        self._flush()

    def _flush(self) -> None:
        due = self._buffer.due_at(self._engine.step_s)
        if due is not None and self._clock() >= due:
            self._report_at = self._clock() + REPORT_S
            self.post(Output(runs=self._buffer.take(), stats=self.stats()))

    def _wait_s(self) -> float | None:
        if self._has_work:
            return 0.0
        due = self._buffer.due_at(self._engine.step_s)
        now = self._clock()
        beside = self._engine.building or (self._parking is not None and self._parking.busy)
        poll = now + POLL_S if beside else None
        report = None if self.idle else self._report_at
        times = [at for at in (due, self._engine.next_deadline(), poll, report) if at is not None]
        return max(0.0, min(times) - now) if times else None

    def _handle(self, message: object) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Embed():
                self._refuse_embed(message)
            case Transcribe(job=job):
                model = self._engine.model
                self.post(transcribe_failed(job, hears_nothing(model)))
            case Cancel():
                self._engine.cancel(message.generation)
            case Pause():
                self._engine.pause(message.generation, self._clock())
            case Resume():
                self._engine.resume(message.generation)
            case Park() | Restore() | Forget():
                self._park(message)
            case Ping():
                stats, prefixes = self.stats(), self._engine.prefix_digests()
                self.post(Pong(nonce=message.nonce, stats=stats, prefixes=prefixes))
            case _:
                log.error("message_unexpected", kind=type(message).__name__)

    def _park(self, request: Park | Restore | Forget) -> None:
        if self._parking is not None:
            self._parking.start(request)
        elif (reply := refuse(request)) is not None:
            self.post(reply)

    def _submit(self, submit: Submit) -> None:
        if (submit.files or submit.media) and not self._engine.knows(submit.generation):
            self._refuse(submit, Invalid(NO_FILES, param="blobs"))
            return
        try:
            self._engine.submit(submit, self._clock())
        except SuperfluidError as error:
            if error.param in _OF_THE_CONTEXT:
                self._reject(submit, error)
            else:
                self._refuse(submit, error)
        else:
            self.post(Accepted(generation=submit.generation))

    def _reject(self, submit: Submit, error: SuperfluidError) -> None:
        """Not here and now: another node may have the window or the room."""
        self.post(rejected(submit.generation, error))

    def _refuse_embed(self, embed: Embed) -> None:
        error = Invalid(
            f"model {self._engine.model} makes text and no vectors; choose an encoder "
            "for embeddings, such as minilm",
            param="model",
        )
        self.post(embed_failed(embed.job, error))
