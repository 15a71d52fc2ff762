"""What the node's core asks its adapter to do, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.agent_records import SendToHead
from bus.ids import CommandId, ModelName, SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToWorker:
    """A message of bus/messages/worker.py; a submit that can not be sent is to be reported back."""

    model: ModelName
    message: object


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIsReady:
    """The model's worker works: its next death is its first again."""

    model: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class FindModel:
    """Look for a model that is to be loaded, and tell the core what it would take."""

    command: CommandId
    model: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowModel:
    """See whether a model that is to be unloaded, and is not served, is one of this node's."""

    command: CommandId
    model: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Keep a worker for one more model running."""

    model: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorker:
    """End a model's worker and start none again; the core is to be told when it is gone."""

    model: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberModel:
    """Serve a model after a restart, or do not."""

    model: ModelName
    served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepParked:
    """Remove the files of parked sessions that are not among these."""

    sessions: frozenset[SessionId]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetParked:
    """Remove the file of a session whose model has no worker that could."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A change of state, for the log."""

    event: str
    pairs: Mapping[str, object] = field(default_factory=dict)
    is_problem: bool = False


Action = (
    SendToHead
    | SendToWorker
    | WorkerIsReady
    | FindModel
    | KnowModel
    | StartWorker
    | StopWorker
    | RememberModel
    | KeepParked
    | ForgetParked
    | Note
)
