"""What the node's core asks its adapter to do, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.agent_records import SendToHead
from bus.ids import ModelName


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
class Note:
    """A change of state, for the log."""

    event: str
    pairs: Mapping[str, object] = field(default_factory=dict)
    is_problem: bool = False


Action = SendToHead | SendToWorker | WorkerIsReady | Note
