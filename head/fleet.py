"""The nodes of the fleet as the head sees them: links, statuses, claims, and snapshots of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from bus.ids import GenerationId, ModelName, NodeIdentity, WorkerIncarnation
from bus.messages.link import Heartbeat, NodeConfirm, NodeStatus
from bus.messages.parts import HostStatus, ModelStatus
from bus.qos import LOWEST_CLASS
from head.candidates import has_lane, room
from head.effects import LinkKey
from head.fleet_node import Claim, Node
from head.snapshot import NOTHING, FleetSnapshot, NodeView

#: A node that comes back gets half its lanes until so many seconds have passed without a failure.
RETURN_S = 10.0


class Fleet:
    """All nodes ever seen by this head since its start. Owned by the head's core.

    Args:
        return_s: how long a node that comes back has to be without a failure to get all its lanes.
    """

    def __init__(self, return_s: float = RETURN_S) -> None:
        self._return_s = return_s
        self._nodes: dict[NodeIdentity, Node] = {}
        self._by_link: dict[LinkKey, Node] = {}
        self._placements_made = 0
        #: Called with a node and a model whose worker there is gone, and all that it held.
        self.on_worker_gone: Callable[[NodeIdentity, ModelName], None] | None = None
        #: Called with a node that has said what it serves, before anybody goes by that.
        self.settle: Callable[[Node], None] | None = None

    @property
    def nodes(self) -> Iterable[Node]:
        return self._nodes.values()

    def by_link(self, link: LinkKey) -> Node | None:
        return self._by_link.get(link)

    def get(self, identity: NodeIdentity) -> Node | None:
        return self._nodes.get(identity)

    def link_up(self, link: LinkKey, confirm: NodeConfirm, now: float) -> Node:
        """A node's link is up; a former link of it must have been taken down before."""
        known = self._nodes.get(confirm.identity)
        node = known or Node(identity=confirm.identity)
        self._nodes[confirm.identity] = node
        if node.link is not None:
            self._by_link.pop(node.link, None)
        if known is not None:
            node.cautious_until_s = now + self._return_s
        node.link = link
        node.incarnation = confirm.incarnation
        node.software = confirm.software
        node.capabilities = confirm.capabilities
        node.since_s = now
        node.down_reason = ""
        node.left = False
        self._by_link[link] = node
        self._take_status(node, confirm.models, confirm.host, now)
        return node

    def link_down(
        self, link: LinkKey, reason: str, now: float, *, left: bool = False
    ) -> Node | None:
        """The node of a link that ended, its claims dropped; None when it has another by now."""
        node = self._by_link.pop(link, None)
        if node is None:
            return None
        node.link = None
        node.since_s = now
        node.down_reason = reason
        node.left = left
        node.says_draining = False
        node.claims.clear()
        node.counts.clear()
        node.of_class.clear()
        node.changed()
        return node

    def forget(self, identity: NodeIdentity) -> bool:
        """Forget a node that is down; False when none of this name is known."""
        node = self._nodes.get(identity)
        if node is None or node.up:
            return False
        for model in node.models:
            self._worker_gone(node, model)
        del self._nodes[identity]
        return True

    def status(self, link: LinkKey, status: NodeStatus, now: float) -> bool:
        """Take what a node says of itself.

        Returns:
            Whether it may take now what it could not before; its load alone opens nothing.
        """
        node = self._by_link.get(link)
        if node is None:
            return False
        opened = _opens(node, node.status_at_s)
        node.says_draining = status.draining
        self._take_status(node, status.models, status.host, now)
        return _opens(node, now) != opened

    def heartbeat(self, link: LinkKey, heartbeat: Heartbeat) -> None:
        """Keep the progress of a node's workers, which is newer than its last status."""
        node = self._by_link.get(link)
        if node is None:
            return
        for beat in heartbeat.workers:
            status = node.models.get(beat.model)
            if status is not None and status.worker == beat.worker:
                node.models[beat.model] = replace(status, worker_phase=beat.phase, steps=beat.steps)

    def claim(
        self,
        identity: NodeIdentity,
        model: ModelName,
        generation: GenerationId,
        now: float,
        qos: int = LOWEST_CLASS,
    ) -> None:
        node = self._nodes[identity]
        node.sessions_placed += 1
        self.reclaim(identity, model, generation, now, qos)
        self._placements_made += 1

    def reclaim(
        self,
        identity: NodeIdentity,
        model: ModelName,
        generation: GenerationId,
        now: float,
        qos: int = LOWEST_CLASS,
    ) -> None:
        """Count a generation again that goes on over a new link."""
        self._nodes[identity].claim(generation, Claim(model=model, at_s=now, qos=qos))

    def release(self, identity: NodeIdentity, generation: GenerationId) -> None:
        """End a claim; fine when the node's link is gone and took it along."""
        node = self._nodes.get(identity)
        if node is not None:
            node.release(generation)

    def worker_lost(
        self, identity: NodeIdentity, model: ModelName, worker: WorkerIncarnation, now: float
    ) -> None:
        """A worker died: the model is not served there until a newer status says so."""
        node = self._nodes.get(identity)
        if node is not None:
            node.deaths[model] = (worker, now)
            if now < node.cautious_until_s:
                node.cautious_until_s = now + self._return_s
            node.changed()
            self._worker_gone(node, model)

    def chain_closed(self, identity: NodeIdentity, model: ModelName) -> None:
        """The chain of a model's last stage is over, and what its worker held of contexts."""
        if (node := self._nodes.get(identity)) is not None:
            self._worker_gone(node, model)

    def served_until_s(self, model: ModelName) -> float:
        """Of a model that no node serves: until when one did that failed; -inf for none."""
        return max((node.served_until_s(model) for node in self.nodes), default=-math.inf)

    def loading(self, model: ModelName) -> bool:
        """Whether any node that is up is loading the model, or will as its worker just died."""
        return any(
            node.up
            and not node.draining
            and (status := node.models.get(model))
            and (status.phase == "loading" or node.has_just_died(status))
            and (model not in node.missing or node.missing[model].may_come)
            for node in self.nodes
        )

    def first_digest(self, model: ModelName) -> int:
        """The tokenizer digest of a model on the first node that serves it; 0 when none says it.

        First is who came first since the head's start, of those that are up.
        """
        for node in self.nodes:
            status = node.models.get(model) if node.up else None
            if status is not None and status.phase == "ready" and status.tokenizer_digest:
                return status.tokenizer_digest
        return 0

    def kind(self, model: ModelName) -> str:
        """What nodes that serve a model say that it is; empty for a decoder, or where none says."""
        statuses = (node.models.get(model) for node in self.nodes if node.up)
        return next((each.kind for each in statuses if each is not None and each.kind), "")

    def largest_window(self, model: ModelName) -> int:
        """The longest context that a node that is up serves; 0 when one does not say."""
        windows = [
            status.window_tokens
            for node in self.nodes
            if node.up and (status := node.models.get(model)) and status.phase == "ready"
        ]
        return max(windows) if windows and all(windows) else 0

    def has_room(self, model: ModelName, qos: int, now: float) -> bool:
        """Whether any node that serves the model may take one more request of a class."""
        return any(_has_room(node.view(model), qos, now) for node in self.nodes)

    def has_lane_on(self, identity: NodeIdentity, model: ModelName, qos: int) -> bool:
        """Whether this node could begin at once with one more request of a class."""
        node = self._nodes.get(identity)
        if node is None:
            return False
        view = node.view(model)
        return not view.draining and has_lane(view, qos)

    def snapshot(
        self,
        model: ModelName,
        now: float,
        awaited: Mapping[NodeIdentity, int] = NOTHING,
        prefilling: Mapping[NodeIdentity, int] = NOTHING,
    ) -> FleetSnapshot:
        """The fleet as placement sees it for one model.

        Args:
            awaited: how many requests wait for a full node of all.
            prefilling: tokens that nodes have to compute for prompts that they were given.
        """
        return FleetSnapshot(
            nodes=tuple(self._views(model)),
            placements_made=self._placements_made,
            now_s=now,
            awaited=awaited,
            prefilling=prefilling,
        )

    def _views(self, model: ModelName) -> list[NodeView]:
        return [
            kept
            if (kept := node.views.get(model)) and kept.draining is node.draining
            else node.view(model)
            for node in self._nodes.values()
        ]

    def _take_status(
        self, node: Node, models: tuple[ModelStatus, ...], host: HostStatus, now: float
    ) -> None:
        before, node.models = node.models, {status.name: status for status in models}
        if self.settle is not None:
            self.settle(node)
        node.host = host
        node.status_at_s = now
        node.freed.clear()
        node.changed()
        for model, status in before.items():
            after = node.models.get(model)
            if after is None or after.worker != status.worker:
                self._worker_gone(node, model)

    def _worker_gone(self, node: Node, model: ModelName) -> None:
        if self.on_worker_gone is not None:
            self.on_worker_gone(node.identity, model)


def _has_room(view: NodeView, qos: int, now: float) -> bool:
    model = view.serving
    if model is None or view.draining:
        return False
    return model.rivals(qos) < room(model, now, lost_node=True)


def _opens(node: Node, now: float) -> dict[ModelName, object]:
    """What decides whether a node can take a request, without its load."""
    found: dict[ModelName, object] = {}
    for name in node.models:
        view = node.view(name)
        model = view.serving
        if model is not None and not view.draining:
            cautious = now < model.cautious_until_s
            found[name] = (model.lanes_total, model.window_tokens, model.tokenizer_digest, cautious)
    return found
