"""The loop of a worker process whose model is a stage before the last: units of work in and out."""

from __future__ import annotations

from collections.abc import Callable

from agent.worker.executor import Executor
from agent.worker.job_loop import JobLoop
from agent.worker.mailbox import Pipe
from agent.worker.refusal import embed_failed, transcribe_failed
from bus.errors import Invalid
from bus.ids import GenerationId
from bus.log import EventLog
from bus.messages.worker import Embed, Transcribe, WorkerStats
from bus.messages.worker_stages import StageClose, StageFailed, StageOpen, StageUnit

log = EventLog(__name__)


class ExecutorWorker(JobLoop):
    """Drives an executor for an agent.

    Args:
        pipe: to the agent.
        executor: with its stage loaded.
        clock: gives `now`.
    """

    def __init__(self, pipe: Pipe, executor: Executor, clock: Callable[[], float]) -> None:
        super().__init__(pipe, clock)
        self._executor = executor

    @property
    def idle(self) -> bool:
        return self._executor.idle

    def stats(self) -> WorkerStats:
        return self._executor.stats()

    def _turn(self) -> None:
        self._tell(self._executor.turn())

    def _handle(self, message: object) -> None:
        match message:
            case StageUnit():
                self._tell(self._executor.take(message))
            case StageOpen():
                self.post(self._executor.open(message))
            case StageClose(chain=chain):
                self._executor.close(chain)
            case _:
                super()._handle(message)

    def _tell(self, reply: StageUnit | StageFailed | None) -> None:
        if isinstance(reply, StageFailed):
            log.error("chain_failed", chain=reply.chain, code=reply.code, error=reply.message)
        if reply is not None:
            self.post(reply)

    def _start(self, request: Embed | Transcribe) -> None:
        if isinstance(request, Embed):
            self.post(embed_failed(request.job, self._no_text()))
        else:
            self.post(transcribe_failed(request.job, self._no_text()))

    def _cancel(self, job: GenerationId) -> None:
        pass  # No job is ever begun.

    def _no_text(self) -> Invalid:
        return Invalid(
            f"model {self._executor.runner.folder.name} is a stage of a model, which computes some "
            "of its layers and gives no answers; ask for the whole model by its name",
            param="model",
        )
