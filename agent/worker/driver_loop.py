"""The loop of a worker process whose model is the last of several stages.

It is a decoder's, but that generations need an open chain, and that turns send units of work to
the first stage and take them from the one before.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.worker.driver import DriverEngine
from agent.worker.mailbox import Pipe
from agent.worker.parking import refuse
from agent.worker.runner import Worker
from bus.messages.link_jobs import MODEL_NOT_READY
from bus.messages.worker import Forget, Park, Rejected, Restore, Submit
from bus.messages.worker_stages import StageClose, StageFailed, StageOpen, StageUnit

_NO_FILES = (
    "sessions of a model in stages are not parked in files; the next request computes them again"
)


class DriverWorker(Worker):
    """Drives a chain's engine for an agent.

    Args:
        pipe: to the agent.
        engine: with the last stage loaded.
        clock: gives `now`.
    """

    def __init__(self, pipe: Pipe, engine: DriverEngine, clock: Callable[[], float]) -> None:
        super().__init__(pipe, engine, clock)
        self._driver = engine

    @property
    def _has_work(self) -> bool:
        return self._driver.has_work

    def _turn(self) -> None:
        emissions = self._driver.turn(self._clock())
        # First, since the other stages have nothing to do.
        self._send()
        self._take(emissions)

    def _handle(self, message: object) -> None:
        match message:
            case StageUnit():
                self._driver.arrived(message)
                self._send()
            case StageOpen():
                self._buffer.take()
                self.post(self._driver.open(message))
            case StageClose(chain=chain):
                if chain == self._driver.chain:
                    self._driver.close()
                    self._buffer.take()
            case Submit() if self._driver.chain is None:
                self._not_ready(message)
            case _:
                super()._handle(message)

    def _send(self) -> None:
        for message in self._driver.take_messages():
            if isinstance(message, StageFailed):
                # Their generations are lost, and are told so by the agent.
                self._buffer.take()
            self.post(message)

    def _not_ready(self, submit: Submit) -> None:
        self.post(
            Rejected(
                generation=submit.generation,
                code=MODEL_NOT_READY,
                message=f"the other stages of model {self._driver.model} are not there",
            )
        )

    def _park(self, request: Park | Restore | Forget) -> None:
        if (reply := refuse(request, _NO_FILES)) is not None:
            self.post(reply)
