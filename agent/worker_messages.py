"""What a worker's messages change: its model's state, its generations, files of sessions, jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent.actions import Action, Note, WorkerIsReady
from agent.served_model import ServedModel
from agent.stages import NodeStages
from bus.agent_jobs import NodeJobs
from bus.agent_session import AgentSession
from bus.messages import worker, worker_stages

#: Takes a message of a model's present worker: model, message, now.
Handler = Callable[[ServedModel, Any, float], None]


class WorkerMessages:
    """Owned by the node's core.

    Args:
        session: the sessions, with the generations and files that workers have.
        jobs: those that workers do.
        stages: those that workers are.
        do: takes actions of the core.
        is_ready: called when a worker became ready.

    Attributes:
        handlers: by the type of message; others are passed over.
    """

    def __init__(
        self,
        *,
        session: AgentSession,
        jobs: NodeJobs,
        stages: NodeStages,
        do: Callable[[Action], None],
        is_ready: Callable[[float], None],
    ) -> None:
        self._session = session
        self._jobs = jobs
        self._do = do
        self._is_ready = is_ready
        self.handlers: Mapping[type, Handler] = {
            worker.Ready: self._ready,
            worker.Accepted: self._accepted,
            worker.Rejected: self._rejected,
            worker.Output: self._output,
            worker_stages.StageUnit: stages.unit,
            worker_stages.StageOpened: stages.opened,
            worker_stages.StageFailed: stages.failed,
            worker.Pong: self._pong,
            worker.Failed: self._failed,
            worker.Parked: self._parked,
            worker.Restored: self._restored,
            **dict.fromkeys(worker.JOB_REPLIES, self._job_reply),
        }

    def _ready(self, found: ServedModel, message: worker.Ready, now: float) -> None:
        found.became_ready(message)
        self._do(WorkerIsReady(model=found.name))
        pairs = {
            "model": found.name,
            "worker": found.incarnation,
            "device": message.device,
            "lanes": message.lanes,
            "window_tokens": message.window_tokens,
            "load_s": message.load_s,
        }
        self._do(Note(event="worker_ready", pairs=pairs))
        self._is_ready(now)

    def _accepted(self, found: ServedModel, message: worker.Accepted, now: float) -> None:
        self._session.worker_accepted(message.generation)

    def _rejected(self, found: ServedModel, message: worker.Rejected, now: float) -> None:
        self._session.decline(
            message.generation, message.code, message.message, message.length, message.max
        )

    def _output(self, found: ServedModel, message: worker.Output, now: float) -> None:
        found.counted(message.stats)
        self._session.worker_output(found.name, found.incarnation, message.runs)

    def _pong(self, found: ServedModel, message: worker.Pong, now: float) -> None:
        found.counted(message.stats)
        if message.nonce != worker.UNASKED:
            found.prefixes = message.prefixes

    def _failed(self, found: ServedModel, message: worker.Failed, now: float) -> None:
        found.said(message)

    def _parked(self, found: ServedModel, message: worker.Parked, now: float) -> None:
        self._session.parking.parked(found.name, message)

    def _restored(self, found: ServedModel, message: worker.Restored, now: float) -> None:
        self._session.parking.restored(found.name, message)

    def _job_reply(self, found: ServedModel, message: Any, now: float) -> None:
        self._jobs.worker_said(message.job, message, now)
