"""What a fleet in memory shows to whoever watches it: every event, before and after the cores.

The fleet calls an observer; the plain one sees nothing. The simulator's oracle is one: it keeps a
record of its own and never asks the cores what they think.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bus.ids import GenerationId, ModelName
from bus.messages import worker
from head.effects import Effects, Output, Persist

if TYPE_CHECKING:
    from tests.harness.memory_node import NodeHost


class Observer:
    """Sees nothing; override what is of interest. Roles are "head" and "node"."""

    # --- links --------------------------------------------------------------------------------

    def link_up(self, role: str, name: str, link_id: int) -> None:
        """A process (of a node: the node `name`) takes a link to be up."""

    def link_down(self, role: str, name: str, link_id: int) -> None:
        """A process takes a link to be over."""

    def sent(self, role: str, name: str, link_id: int, message: object) -> None:
        """A process has queued a message on a link."""

    def accepted(self, role: str, name: str, link_id: int, message: object) -> None:
        """A process has taken a message from a link for true."""

    # --- the head -----------------------------------------------------------------------------

    def head_started(self, boot: int) -> None:
        """A head's process has begun."""

    def head_died(self) -> None:
        """It is gone."""

    def effects(self, effects: Effects) -> None:
        """The core has given one round."""

    def committed(self, persist: Persist) -> None:
        """Rows are durable."""

    def released(self, output: Output) -> None:
        """An output has left the head's gate."""

    # --- nodes --------------------------------------------------------------------------------

    def node_started(self, node: NodeHost) -> None:
        """An agent's process has begun."""

    def node_died(self, node: NodeHost) -> None:
        """It is gone, and its worker with it."""

    def paused(self, name: str) -> None:
        """A process ("head" or a node's name) was stopped."""

    def resumed(self, name: str) -> None:
        """It goes on."""

    def worker_ready(self, node: NodeHost) -> None:
        """A worker has loaded its model."""

    def worker_died(self, node: NodeHost, running: list[GenerationId]) -> None:
        """A worker is gone, and what it ran."""

    def model_withdrawn(self, node: NodeHost) -> None:
        """A node begins nothing with its model any more: it is being unloaded."""

    def worker_stopped(self, node: NodeHost) -> None:
        """A worker was ended because its model was unloaded."""

    def submitted(self, node: NodeHost, submit: worker.Submit) -> None:
        """A worker was given a generation to run."""

    def computed(self, node: NodeHost, generation: GenerationId, index: int, token: int) -> None:
        """A worker has made a token."""

    def side_worker_ready(self, node: NodeHost, model: ModelName) -> None:
        """A worker of a model that does jobs has loaded it."""

    def side_worker_died(self, node: NodeHost, model: ModelName) -> None:
        """It is gone."""

    def side_computed(self, node: NodeHost, message: object) -> None:
        """It has made something of a job."""

    # --- callers ------------------------------------------------------------------------------

    def replied(self, client: bytes, body: dict[str, Any]) -> None:
        """A reply has reached a client."""

    def after_event(self) -> None:
        """One event is over, whatever it was."""
