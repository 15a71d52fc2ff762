"""Commands that change which models a node serves, until the node has answered them.

A command that got no answer because its link ended goes again over the node's next link, under the
same id: it changes nothing when it was carried out already. After `ANSWER_S` the head says what it
knows and leaves it at that; what the node serves is in its status.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bus.capabilities import MODELS
from bus.errors import (
    ERROR_TABLE,
    Internal,
    NoNode,
    NotFound,
    SuperfluidError,
    TimedOut,
    UnsupportedOnFleet,
)
from bus.ids import CommandId, ModelName, NodeIdentity
from bus.messages.link import ModelAnswer, ModelLoad, ModelUnload
from bus.timers import Timers
from head.effects import LinkKey
from head.fleet import Fleet
from head.fleet_node import Node
from head.outbox import Outbox

#: A node answers at once; so long its link may take to come back meanwhile.
ANSWER_S = 10.0

#: Takes what came of a command: None when the node does it.
Then = Callable[[SuperfluidError | None], None]


@dataclass(slots=True)
class _Asked:
    node: NodeIdentity
    message: ModelLoad | ModelUnload
    then: Then
    timer: int


class ModelDesk:
    """Owned by the head's core. Invariant: every command that is open has a timer."""

    def __init__(
        self, *, outbox: Outbox, fleet: Fleet, timers: Timers, next_command: Callable[[], int]
    ) -> None:
        self._outbox = outbox
        self._fleet = fleet
        self._timers = timers
        self._next_command = next_command
        self._open: dict[CommandId, _Asked] = {}

    def load(self, identity: NodeIdentity, model: ModelName, then: Then, now: float) -> None:
        """Have a node serve one more model.

        Raises:
            NotFound: no such node.
            NoNode: it is down.
            UnsupportedOnFleet: its version can not do it.
        """
        node = self._reachable(identity)
        self._ask(node, ModelLoad(command=self._command(), model=model), then, now)

    def unload(
        self, identity: NodeIdentity, model: ModelName, grace_s: float, then: Then, now: float
    ) -> None:
        """Have a node serve a model no more; from now on nothing is placed on it there.

        Args:
            grace_s: how long what runs there may go on before it moves.

        Raises:
            NotFound: no such node.
            NoNode: it is down.
            UnsupportedOnFleet: its version can not do it.
        """
        node = self._reachable(identity)
        grace_ms = round(grace_s * 1000)
        message = ModelUnload(command=self._command(), model=model, grace_ms=grace_ms)
        node.changes_phase(model, "unloading")
        self._ask(node, message, then, now)

    def _command(self) -> CommandId:
        return CommandId(self._next_command())

    def _ask(self, node: Node, message: ModelLoad | ModelUnload, then: Then, now: float) -> None:
        timer = self._timers.at(now + ANSWER_S, partial(self._overdue, message.command))
        self._open[message.command] = _Asked(node.identity, message, then, timer)
        if node.link is not None:
            self._outbox.send(node.link, message)

    def _reachable(self, identity: NodeIdentity) -> Node:
        node = self._fleet.get(identity)
        if node is None:
            raise NotFound(
                f"no node {identity} is known; list them with: sfctl node ls", param="node"
            )
        if not node.up:
            why = node.down_reason or "it has no link"
            raise NoNode(
                f"node {identity} is down ({why}), so it can not be told; start its agent first",
                details={"nodes": {identity: why}},
            )
        if (error := _unable(node)) is not None:
            raise error
        return node

    # --- what comes of it -----------------------------------------------------------------------

    def answered(self, link: LinkKey, answer: ModelAnswer) -> None:
        """A node says what became of a command; of one that is over it is passed over."""
        asked, node = self._open.get(answer.command), self._fleet.by_link(link)
        if asked is None or node is None or node.identity != asked.node:
            return
        if not answer.code:
            loads = isinstance(asked.message, ModelLoad)
            node.changes_phase(answer.model, "loading" if loads else "unloading")
        self._close(answer.command, _error(asked, answer) if answer.code else None)

    def link_up(self, node: Node) -> None:
        """A node has another link: what it has not answered it is told again."""
        for command, asked in list(self._open.items()):
            if asked.node != node.identity or node.link is None:
                continue
            if (error := _unable(node)) is not None:
                self._close(command, error)
            else:
                self._outbox.send(node.link, asked.message)

    def _overdue(self, command: CommandId, now: float) -> None:
        asked = self._open.get(command)
        if asked is None:
            return
        node = self._fleet.get(asked.node)
        status = None if node is None else node.models.get(asked.message.model)
        phase = "not served" if status is None else status.phase
        known = (
            f"it is down ({node.down_reason}), and {asked.message.model} was {phase} there"
            if node is not None and not node.up
            else f"{asked.message.model} is {phase} there by its last status"
        )
        error = TimedOut(
            f"node {asked.node} did not answer within {ANSWER_S:.0f} s; {known}; it may still do "
            "it: see sfctl node ls, and ask again",
            details={"node": asked.node, "model": asked.message.model, "phase": phase},
        )
        self._close(command, error)

    def _close(self, command: CommandId, error: SuperfluidError | None) -> None:
        asked = self._open.pop(command)
        self._timers.cancel(asked.timer)
        asked.then(error)


def _unable(node: Node) -> SuperfluidError | None:
    if MODELS in node.capabilities:
        return None
    return UnsupportedOnFleet(
        f"models can not be loaded or unloaded while node {node.identity} runs: its version "
        f"({node.software}) does not know '{MODELS}'; update superfluid on that node",
        details={"node": node.identity, "capability": MODELS},
    )


def _error(asked: _Asked, answer: ModelAnswer) -> SuperfluidError:
    details: dict[str, object] = {"node": asked.node, "model": answer.model}
    if answer.needed_bytes:
        details |= {
            "needed_bytes": answer.needed_bytes,
            "free_bytes": answer.free_bytes,
            "loaded": list(answer.loaded),
        }
    cls = ERROR_TABLE.get(answer.code, Internal)
    text = f"node {asked.node}: {answer.message or answer.code}"
    return cls(text, param="model" if cls is NotFound else None, details=details)
