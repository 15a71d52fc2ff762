"""The node's core: models and their workers, the sessions of the head, and what it is told.

Sans-IO: events and `now` in, actions out; the adapter in agent/node.py carries them out. It starts
no worker by itself: a pool keeps one per model running and says what happens to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from agent.actions import Action, KeepParked, Note, SendToWorker, StopWorker
from agent.blobs import NodeBlobs, NodeBlobStore
from agent.model_commands import ModelCommands
from agent.served_model import ServedModel
from agent.served_names import ServedNames
from agent.stages import NodeStages
from agent.worker_jobs import EmbedJobs, TranscribeJobs
from agent.worker_messages import WorkerMessages
from agent.worker_requests import WorkerRequests
from bus.agent_jobs import JobHandler, NodeJobs
from bus.agent_records import SendToHead
from bus.agent_session import AgentSession
from bus.agent_status import AgentModel
from bus.errors import SuperfluidError
from bus.ids import CommandId, GenerationId, ModelName, NodeIdentity, WorkerIncarnation
from bus.messages import link, parts, worker
from bus.messages.job_bodies import EMBED, TRANSCRIBE
from bus.messages.link_jobs import WORKER_BEHIND
from bus.version import __version__

SOFTWARE = f"superfluid {__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPolicy:
    """Times in seconds."""

    #: How often the head hears the whole state; changes go at once.
    status_interval_s: float = 2.0
    #: How often a worker is asked for its counters.
    ping_interval_s: float = 5.0


class AgentCore:
    """One node. Owns its sessions and its picture of the workers.

    Args:
        identity: unique in the fleet.
        incarnation: this start's boot number.
        models: what it serves to begin with; the head may load and unload some.
        files: where the files of requests go; None takes none.
        needed_bytes: what each of the models takes of memory, where that is known.
        budget_bytes: what all models may take together; 0 is no limit.
        stages: which parts of models they are, of those that are.
        job_handlers: do jobs that need no worker, by kind.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        incarnation: int,
        models: Iterable[ModelName],
        policy: AgentPolicy = AgentPolicy(),
        files: NodeBlobStore | None = None,
        *,
        needed_bytes: Mapping[ModelName, int] = MappingProxyType({}),
        budget_bytes: int = 0,
        stages: Mapping[ModelName, parts.StageStatus] = MappingProxyType({}),
        job_handlers: Mapping[str, JobHandler] = MappingProxyType({}),
    ) -> None:
        self.identity = identity
        self._incarnation = incarnation
        self._policy = policy
        self._models = {
            name: ServedModel(name, needed_bytes=needed_bytes.get(name, 0), stage=stages.get(name))
            for name in models
        }
        self._names = ServedNames(self._models)
        self._session = AgentSession()
        self._blobs = NodeBlobs(files, self._blobs_in_use) if files is not None else None
        self._requests = WorkerRequests(self._models, self._session, self._blobs)
        self._jobs = NodeJobs(
            {
                EMBED: EmbedJobs(self._models, self._do),
                TRANSCRIBE: TranscribeJobs(self._models, self._do),
                **job_handlers,
            },
            self._tell,
            self._requests.files_of,
        )
        self._host = parts.HostStatus()
        self._actions: list[Action] = []
        self._link_is_up = False
        self._stages = NodeStages(
            self._models,
            self._session,
            do=self._do,
            tell=self._tell,
            changed=self._send_status,
        )
        self._commands = ModelCommands(
            self._models,
            budget_bytes=budget_bytes,
            do=self._do,
            tell=self._tell,
            runs_on=lambda model: self._session.runs_on(model) or self._jobs.runs_on(model),
        )
        self._status_at: float | None = None
        self._ping_at: float | None = None
        self._nonce = 0
        self._on_worker = WorkerMessages(
            session=self._session,
            jobs=self._jobs,
            stages=self._stages,
            do=self._do,
            is_ready=self._worker_is_ready,
        ).handlers

    # --- what it shows ------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a generation, or a job, is live."""
        return self._session.is_generating or self._jobs.is_busy

    def actions(self) -> list[Action]:
        """What to do since the last call, in order."""
        self._take_session_actions()
        self._stop_unloaded()
        self._take_blob_messages()
        taken, self._actions = self._actions, []
        return taken

    def confirm(self) -> link.NodeConfirm:
        """The node's side of the last handshake step, as of now."""
        return link.NodeConfirm(
            identity=self.identity,
            incarnation=self._incarnation,
            software=SOFTWARE,
            models=self._statuses(),
            host=self._host,
            highest_epoch=self._session.highest_epoch,
            held=self._session.held(),
        )

    def heartbeat(self, loop_lag_ms: float = 0.0) -> link.Heartbeat:
        """The content of a heartbeat, as of now."""
        return link.Heartbeat(
            loop_lag_ms=round(loop_lag_ms),
            workers=tuple(model.beat(self._names.shown(model)) for model in self._models.values()),
        )

    def local_models(self) -> tuple[AgentModel, ...]:
        """The models as this machine is told of them."""
        return tuple(model.local_status() for model in self._models.values())

    def _statuses(self) -> tuple[parts.ModelStatus, ...]:
        return tuple(model.status(self._names.shown(model)) for model in self._models.values())

    # --- the link -----------------------------------------------------------------------------

    def link_up(self, head: link.HeadConfirm, now: float) -> None:
        """A head confirmed the link; it knows what `confirm` said a moment ago.

        Another head than the last one finds nothing of that one's sessions.
        """
        self._forget_unsent()
        self._link_is_up = True
        self._session.link_up(head.identity, now)
        self._send_status(now)

    def link_down(self, now: float) -> None:
        """The link is gone; sessions and generations go on without it, by their leases."""
        self._session.link_down(now)
        self._jobs.link_down()
        self._stages.link_down()
        if self._blobs is not None:
            self._blobs.link_down(now)
        self._link_is_up = False
        self._status_at = None
        self._forget_unsent()

    def _forget_unsent(self) -> None:
        """What was for a link that is gone must not go out over the next one."""
        self._actions = [a for a in self._actions if not isinstance(a, SendToHead)]

    def link_message(self, message: object, now: float) -> None:
        """A message of the head. Heartbeats and such are the link's own and need nothing here."""
        message = self._names.of_head(message)
        if self._commands.receive(message, now):
            self._send_status(now)
        elif self._stages.receive(message, now) or self._jobs.receive(message, now):
            return
        elif self._blobs is None or not self._blobs.receive(message, now):
            self._session.receive(message, now)

    def host_sampled(self, host: parts.HostStatus) -> None:
        """The host's figures for the next status."""
        budget_bytes = 0 if self._blobs is None else self._blobs.budget_bytes
        self._host = replace(host, blob_budget_bytes=budget_bytes)

    def files_settled(self) -> None:
        """The store of files has put some on disk, or could not."""
        if self._blobs is not None:
            self._blobs.settle()

    # --- models that come and go --------------------------------------------------------------

    def model_found(
        self,
        command: CommandId,
        model: ModelName,
        needed_bytes: int,
        stage: parts.StageStatus | None = None,
    ) -> None:
        """The model of a FindModel lies here; a worker of it would take so much memory."""
        self._commands.found(command, model, needed_bytes, stage)

    def model_missing(self, command: CommandId, model: ModelName, error: SuperfluidError) -> None:
        """The model of a FindModel can not be served here, or that of a KnowModel is unknown."""
        self._commands.refuse(command, model, error)

    def model_known(self, command: CommandId, model: ModelName) -> None:
        """The model of a KnowModel is one of this node's."""
        self._commands.known(command, model)

    def worker_not_started(self, model: ModelName, error: SuperfluidError, now: float) -> None:
        """The worker of a StartWorker could not be started."""
        self._commands.not_started(model, error)
        self._send_status(now)

    def worker_stopped(self, model: ModelName, now: float) -> None:
        """The worker of a StopWorker is gone; `worker_exited` came before, if it ran."""
        self._note("model_unloaded", self._models[model])
        self._commands.stopped(model)
        self._send_status(now)

    def _stop_unloaded(self) -> None:
        for model in self._commands.due():
            why = f"{model.name} was unloaded from this node"
            self._stages.worker_gone(model.name, why)
            self._session.model_gone(model.name, why)
            self._jobs.worker_gone(model.name, why)
            self._take_session_actions()
            self._actions.append(StopWorker(model=model.name))

    # --- workers ------------------------------------------------------------------------------

    def worker_started(self, model: ModelName, incarnation: WorkerIncarnation, now: float) -> None:
        """The pool started a worker, which loads its model now."""
        found = self._models[model]
        found.started(incarnation)
        self._note("worker_started", found)
        self._commands.started(model)
        self._send_status(now)

    def worker_message(
        self, model: ModelName, incarnation: WorkerIncarnation, message: object, now: float
    ) -> None:
        """A worker said something; of a former incarnation it is passed over."""
        found = self._models[model]
        handle = self._on_worker.get(type(message))
        if handle is not None and incarnation == found.incarnation:
            handle(found, message, now)

    def worker_exited(
        self,
        model: ModelName,
        incarnation: WorkerIncarnation,
        returncode: int,
        respawn_in_s: float | None,
        now: float,
    ) -> None:
        """A worker is gone.

        Args:
            returncode: exit status, or -N for signal N.
            respawn_in_s: when the next one starts; None when none does.
        """
        found = self._models[model]
        if incarnation != found.incarnation:
            return
        reason = found.exited(returncode)
        self._session.worker_lost(model, incarnation, reason)
        self._stages.worker_gone(model, reason, incarnation)
        self._jobs.worker_gone(model, reason)
        pairs = {"worker": incarnation, "reason": reason, "again_in_s": respawn_in_s}
        self._note("worker_exited", found, is_problem=respawn_in_s is not None, **pairs)
        self._send_status(now)

    def worker_hung(
        self, model: ModelName, incarnation: WorkerIncarnation, reason: str, now: float
    ) -> None:
        """A worker is given up: its generations are lost. Its owner kills it, which ends it."""
        found = self._models[model]
        if incarnation != found.incarnation:
            return
        found.hung(reason)
        self._session.worker_lost(model, incarnation, reason)
        self._stages.worker_gone(model, reason, incarnation)
        self._jobs.worker_gone(model, reason)
        self._note("worker_hung", found, is_problem=True, worker=incarnation, reason=reason)
        self._send_status(now)

    def worker_behind(self, generation: GenerationId, model: ModelName) -> None:
        """A submit could not be handed to the worker, which takes nothing at present."""
        self._session.decline(generation, WORKER_BEHIND, _takes_no_more(model))

    def worker_parks_none(self, model: ModelName, message: worker.Park | worker.Restore) -> None:
        """The same of a request about a session's file."""
        self._session.parking.not_asked(model, message, _takes_no_more(model))

    def worker_takes_no_job(self, model: ModelName, job: GenerationId) -> None:
        """The same of a job."""
        self._jobs.not_sent(job, _takes_no_more(model))

    def worker_takes_no_unit(self, model: ModelName, chain: int, now: float) -> None:
        """The same of what is about a chain of stages."""
        self._stages.not_sent(model, chain, now)

    def _worker_is_ready(self, now: float) -> None:
        if self._ping_at is None:
            self._ping_at = now + self._policy.ping_interval_s
        self._send_status(now)

    # --- time ---------------------------------------------------------------------------------

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due (seconds), or None."""
        files_at = None if self._blobs is None else self._blobs.next_timeout()
        models_at = self._commands.next_timeout()
        times = (self._session.next_timeout(), self._status_at, self._ping_at, files_at, models_at)
        return min((at for at in times if at is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """Renew and fence leases, send the status, ask the workers."""
        self._session.handle_timeout(now)
        self._commands.handle_timeout(now)
        if self._blobs is not None:
            self._blobs.handle_timeout(now)
        if self._status_at is not None and self._status_at <= now:
            self._send_status(now)
        if self._ping_at is not None and self._ping_at <= now:
            self._ping(now)

    def _ping(self, now: float) -> None:
        ready = [model.name for model in self._models.values() if model.phase == "ready"]
        self._ping_at = now + self._policy.ping_interval_s if ready else None
        self._nonce += 1
        for name in ready:
            self._actions.append(SendToWorker(model=name, message=worker.Ping(nonce=self._nonce)))

    def _send_status(self, now: float) -> None:
        if not self._link_is_up:
            return
        self._take_session_actions()
        self._status_at = now + self._policy.status_interval_s
        status = link.NodeStatus(models=self._statuses(), host=self._host)
        self._actions.append(SendToHead(message=status))

    # --- actions ------------------------------------------------------------------------------

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _tell(self, message: object) -> None:
        if self._link_is_up:
            self._actions.append(SendToHead(message=message))

    def _take_session_actions(self) -> None:
        """Move what the sessions want over, declining what no worker here can take."""
        while wanted := self._session.actions():
            for action in wanted:
                if isinstance(action, SendToHead):
                    self._tell(self._names.for_head(action.message))
                elif (todo := self._requests.take(action)) is not None:
                    self._actions.append(todo)
        if (kept := self._session.parking.take_kept()) is not None:
            self._actions.append(KeepParked(sessions=kept.sessions))

    def _blobs_in_use(self) -> set[bytes]:
        return self._session.blobs_in_use() | self._jobs.blobs_in_use()

    def _take_blob_messages(self) -> None:
        messages = [] if self._blobs is None else self._blobs.messages()
        if self._link_is_up:
            self._actions += [SendToHead(message=message) for message in messages]

    def _note(
        self, event: str, model: ServedModel, *, is_problem: bool = False, **pairs: object
    ) -> None:
        self._actions.append(
            Note(event=event, pairs={"model": model.name, **pairs}, is_problem=is_problem)
        )

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        self._session.validate_state()
        self._jobs.validate_state()
        self._stages.validate_state()
        if self._blobs is not None:
            self._blobs.validate_state()
        for model in self._models.values():
            if (model.ready is not None) != (model.phase == "ready"):
                raise ValueError(f"{model.name} is {model.phase} and has a wrong Ready")
        if not self._link_is_up and self._status_at is not None:
            raise ValueError("a status waits without a link")


def _takes_no_more(model: ModelName) -> str:
    return f"the worker of {model} takes no more work at present"
