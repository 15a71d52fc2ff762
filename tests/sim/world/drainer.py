"""An operator who drains nodes, some of them to start their agents again, and gives them work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.world.record import Violation

if TYPE_CHECKING:
    from tests.harness.memory_node import NodeHost
    from tests.sim.world.world import World

#: What was not answered is asked again after this.
AGAIN_S = 3.0
#: The head may be gone, or not have heard of the node since it is back.
PASSING = frozenset({"not_found"})


class Drainer:
    """Of one world. `drained` has every node that gets no work, as far as the operator knows.

    The record says the same for the oracle: a node is drained from when that was asked for until
    work for it was asked for, and surely so from when the head has said so.
    """

    name = "drainer"
    is_asked = False

    def __init__(self, world: World) -> None:
        self._world = world
        self.drained: set[str] = set()
        #: By request: its operation and node.
        self._asked: dict[bytes, tuple[str, str]] = {}
        #: Nodes that are to have work again.
        self._wanted: set[str] = set()

    @property
    def closed(self) -> bool:
        """Whether every node that was drained has work again."""
        return not self._wanted

    def drain(self, node: NodeHost) -> None:
        """Take a node out of service."""
        if node.name in self.drained:
            return
        self.drained.add(node.name)
        self._world.record.node(node.name).drain_asked = True
        self._world.oracle.look_at_service()
        self._send("node.drain", node.name)

    def undrain(self, name: str) -> None:
        """Give a node work again; asked for until it has it."""
        if name in self.drained and name not in self._wanted:
            self._wanted.add(name)
            # Late answers to what was asked before are no news of what will be.
            self._asked = {r: asked for r, asked in self._asked.items() if asked[1] != name}
            facts = self._world.record.node(name)
            facts.drain_asked, facts.undrained_s = False, self._world.fleet.now
            facts.drain_told_s = None
            self._ask(name)

    def undrain_all(self) -> None:
        """Give every node work again."""
        for name in sorted(self.drained):
            self.undrain(name)

    def _ask(self, name: str) -> None:
        if name in self._wanted:
            self._send("node.undrain", name)
            self._world.fleet.after(AGAIN_S, lambda: self._ask(name))

    def _send(self, op: str, node: str) -> None:
        world = self._world
        request = world.callers.request()
        self._asked[request] = (op, node)
        world.say(f"operator {op} {node}")
        world.fleet.to_head(world.callers.connect(self), {"op": op, "id": request, "name": node})

    def head_died(self) -> None:
        """What was asked is asked again by itself."""

    def replied(self, body: dict[str, Any]) -> None:
        """The head has done what was asked, or knows no such node, which then is not drained."""
        op, name = self._asked.pop(body["id"], ("", ""))
        if body["kind"] == "error" and body["error"]["code"] not in PASSING:
            raise Violation(f"the operator got {body}")
        facts = self._world.record.node(name)
        if op == "node.drain" and body["kind"] == "end":
            facts.drain_told_s = self._world.fleet.now
            self._world.record.count("drains")
        elif op == "node.undrain" and name in self._wanted:
            self._wanted.discard(name)
            self.drained.discard(name)
            self._world.oracle.look_at_service()
