"""An operator: takes the model off nodes and has them load it again, until they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.harness.memory_parts import MODEL
from tests.sim.world.record import Violation

if TYPE_CHECKING:
    from tests.harness.memory_node import NodeHost
    from tests.sim.world.world import World

#: A load that was refused, or not answered, is asked for again after this.
AGAIN_S = 3.0
#: Why one may be: the head is gone or its node is, or the model is still being unloaded.
PASSING = frozenset({"no_node", "not_found", "timed_out", "model_busy"})


class Operator:
    """Of one world. Invariant: `absent` has every node that was told to unload and not reloaded."""

    name = "operator"
    is_asked = False

    def __init__(self, world: World) -> None:
        self._world = world
        #: Nodes that may be without the model, as far as the operator knows.
        self.absent: set[str] = set()
        #: Of a load's request: its node.
        self._loads: dict[bytes, str] = {}
        #: Nodes that are to have the model back.
        self._wanted: set[str] = set()

    @property
    def closed(self) -> bool:
        """Whether every node that was asked to load has said that it does."""
        return not self._wanted

    def unload(self, node: NodeHost, grace_s: float) -> None:
        """Have a node serve the model no more."""
        if node.name in self.absent:
            return
        self.absent.add(node.name)
        # Late answers to what was asked before are no news of what will be.
        self._loads = {request: name for request, name in self._loads.items() if name != node.name}
        self._world.oracle.look_at_service()
        self._send("model.unload", node.name, grace_s=grace_s)

    def load(self, name: str) -> None:
        """Have a node serve it again; asked for until it does."""
        if name in self.absent and name not in self._wanted:
            self._wanted.add(name)
            self._ask(name)

    def load_all(self) -> None:
        """Have every node serve it again."""
        for name in sorted(self.absent):
            self.load(name)

    def _ask(self, name: str) -> None:
        if name in self._wanted:
            request = self._send("model.load", name)
            self._loads[request] = name
            self._world.fleet.after(AGAIN_S, lambda: self._ask(name))

    def _send(self, op: str, node: str, **options: float) -> bytes:
        world = self._world
        request = world.callers.request()
        body = {"op": op, "id": request, "node": node, "model": MODEL, **options}
        world.say(f"operator {op} {node} {options}")
        world.fleet.to_head(world.callers.connect(self), body)
        return request

    def head_died(self) -> None:
        """What was asked is asked again by itself."""

    def replied(self, body: dict[str, Any]) -> None:
        """A load that its node has begun ends the asking."""
        if body["kind"] == "error":
            code = body["error"]["code"]
            self._world.record.count(f"operator {code}")
            if code not in PASSING:
                raise Violation(f"the operator got {body}")
            return
        name = self._loads.get(body["id"])
        if name is not None and name in self._wanted:
            self._wanted.discard(name)
            self.absent.discard(name)
            self._world.record.count("loads")
            self._world.oracle.look_at_service()
