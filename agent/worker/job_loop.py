"""The loop of a worker process whose model makes no text: jobs are all that it takes."""

from __future__ import annotations

from abc import abstractmethod

from agent.worker.loop import WorkerLoop
from agent.worker.parking import refuse
from bus.errors import Invalid
from bus.ids import GenerationId
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
)

log = EventLog(__name__)


class JobLoop(WorkerLoop):
    """Refuses generations, and files of sessions; what becomes of a job is a subclass's."""

    @abstractmethod
    def _start(self, request: Embed | Transcribe) -> None:
        """Begin with a job, or say why not."""

    @abstractmethod
    def _cancel(self, job: GenerationId) -> None:
        """Forget a job; unknown ones are passed over."""

    @abstractmethod
    def _no_text(self) -> Invalid:
        """The error of a generation."""

    def _wait_s(self) -> float | None:
        return None if self.idle else 0.0

    def _handle(self, message: object) -> None:
        match message:
            case Embed() | Transcribe():
                self._start(message)
            case Cancel(generation=job):
                self._cancel(job)
            case Submit():
                self._refuse(message, self._no_text())
            case Pause() | Resume():
                pass  # Of a generation, and there is none.
            case Park() | Restore() | Forget():
                if (reply := refuse(message)) is not None:
                    self.post(reply)
            case Ping():
                self.post(Pong(nonce=message.nonce, stats=self.stats()))
            case _:
                log.error("message_unexpected", kind=type(message).__name__)
