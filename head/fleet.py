"""The nodes of the fleet as the head sees them: links, statuses, claims, and snapshots of them.

A claim is made when a placement is decided and released when its generation ends; until a status
that could have counted it arrives it is *unseen* and added to what the status says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from bus.ids import GenerationId, ModelName, NodeIdentity, WorkerIncarnation
from bus.messages.link import Heartbeat, NodeConfirm, NodeStatus
from bus.messages.parts import HostStatus, ModelStatus
from head.effects import LinkKey
from head.node_marks import NO_MARK, NodeMark
from head.placement import LANES_AHEAD
from head.snapshot import FleetSnapshot, ModelView, NodeView

#: A status may have crossed a placement on its way: only older claims count as seen by it.
STATUS_CROSSING_S = 0.25


@dataclass(slots=True, kw_only=True)
class Claim:
    """One generation placed on a node."""

    model: ModelName
    at_s: float


@dataclass(slots=True, kw_only=True)
class Node:
    """One node. `link` is None while it is down; what it last said stays for `node ls`."""

    identity: NodeIdentity
    link: LinkKey | None = None
    incarnation: int = 0
    software: str = ""
    capabilities: tuple[str, ...] = ()
    since_s: float = 0.0
    down_reason: str = ""
    #: It said goodbye: it is down on purpose.
    left: bool = False
    models: dict[ModelName, ModelStatus] = field(default_factory=dict)
    host: HostStatus = HostStatus()
    #: Its own status says that it is about to leave.
    says_draining: bool = False
    #: What an operator decided about it.
    mark: NodeMark = NO_MARK
    status_at_s: float = -math.inf
    claims: dict[GenerationId, Claim] = field(default_factory=dict)
    sessions_placed: int = 0
    #: Workers that died, by model, and when: what a status older than that says of them is over.
    deaths: dict[ModelName, tuple[WorkerIncarnation, float]] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        return self.link is not None

    @property
    def draining(self) -> bool:
        """Whether it gets no work any more, and what it has moves off."""
        return self.mark.drained or self.says_draining

    @property
    def state(self) -> str:
        """`up`, `draining`, `drained` (nothing runs there), `left` (it said goodbye) or `down`."""
        if not self.up:
            return "left" if self.left else "down"
        if not self.draining:
            return "up"
        return "draining" if self.claims else "drained"

    def has_just_died(self, status: ModelStatus) -> bool:
        """Whether the worker that a status tells of died after it, as far as is known."""
        worker, died_s = self.deaths.get(status.name, (None, 0.0))
        return status.worker == worker and self.status_at_s < died_s + STATUS_CROSSING_S

    def changes_phase(self, model: ModelName, phase: str) -> None:
        """The node was told to load or unload a model: what its next status will say.

        One that is loaded already stays as it is, and one that is not served has nothing to unload.
        """
        status = self.models.get(model)
        if status is None and phase == "loading":
            self.models[model] = ModelStatus(name=model, phase=phase)
        elif status is not None and phase == "unloading":
            self.models[model] = replace(status, phase=phase)

    def in_flight(self, model: ModelName) -> int:
        return sum(claim.model == model for claim in self.claims.values())


class Fleet:
    """All nodes ever seen by this head since its start. Owned by the head's core."""

    def __init__(self) -> None:
        self._nodes: dict[NodeIdentity, Node] = {}
        self._by_link: dict[LinkKey, Node] = {}
        self._placements_made = 0

    @property
    def nodes(self) -> Iterable[Node]:
        return self._nodes.values()

    def by_link(self, link: LinkKey) -> Node | None:
        return self._by_link.get(link)

    def get(self, identity: NodeIdentity) -> Node | None:
        return self._nodes.get(identity)

    def link_up(self, link: LinkKey, confirm: NodeConfirm, now: float) -> Node:
        """A node's link is up; a former link of it must have been taken down before."""
        node = self._nodes.setdefault(confirm.identity, Node(identity=confirm.identity))
        if node.link is not None:
            self._by_link.pop(node.link, None)
        node.link = link
        node.incarnation = confirm.incarnation
        node.software = confirm.software
        node.capabilities = confirm.capabilities
        node.since_s = now
        node.down_reason = ""
        node.left = node.says_draining = False
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
        node.claims.clear()
        return node

    def forget(self, identity: NodeIdentity) -> bool:
        """Forget a node that is down; False when none of this name is known."""
        node = self._nodes.get(identity)
        if node is None or node.up:
            return False
        del self._nodes[identity]
        return True

    def status(self, link: LinkKey, status: NodeStatus, now: float) -> None:
        node = self._by_link.get(link)
        if node is not None:
            node.says_draining = status.draining
            self._take_status(node, status.models, status.host, now)

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
        self, identity: NodeIdentity, model: ModelName, generation: GenerationId, now: float
    ) -> None:
        node = self._nodes[identity]
        self.reclaim(identity, model, generation, now)
        node.sessions_placed += 1
        self._placements_made += 1

    def reclaim(
        self, identity: NodeIdentity, model: ModelName, generation: GenerationId, now: float
    ) -> None:
        """Count a generation again that goes on over a new link."""
        self._nodes[identity].claims[generation] = Claim(model=model, at_s=now)

    def release(self, identity: NodeIdentity, generation: GenerationId) -> None:
        """End a claim; fine when the node's link is gone and took it along."""
        node = self._nodes.get(identity)
        if node is not None:
            node.claims.pop(generation, None)

    def worker_lost(
        self, identity: NodeIdentity, model: ModelName, worker: WorkerIncarnation, now: float
    ) -> None:
        """A worker died: the model is not served there until a newer status says so."""
        node = self._nodes.get(identity)
        if node is not None:
            node.deaths[model] = (worker, now)

    def loading(self, model: ModelName) -> bool:
        """Whether any node that is up is loading the model, or will as its worker just died."""
        return any(
            node.up
            and (status := node.models.get(model))
            and (status.phase == "loading" or node.has_just_died(status))
            for node in self.nodes
        )

    def largest_window(self, model: ModelName) -> int:
        """The longest context that a node that is up serves; 0 when one does not say."""
        windows = [
            status.window_tokens
            for node in self.nodes
            if node.up and (status := node.models.get(model)) and status.phase == "ready"
        ]
        return max(windows) if windows and all(windows) else 0

    def has_room(self, model: ModelName) -> bool:
        """Whether any node that serves the model has fewer generations than it may have."""
        return any(
            node.up
            and not node.draining
            and (status := node.models.get(model)) is not None
            and node.in_flight(model) < status.lanes_total + LANES_AHEAD
            for node in self.nodes
        )

    def snapshot(self, model: ModelName, tokenizer_digest: int, now: float) -> FleetSnapshot:
        """The fleet as placement sees it for one model; digest 0 leaves that check out."""
        views = tuple(
            self._view(node, model, tokenizer_digest, now) for node in self._nodes.values()
        )
        return FleetSnapshot(nodes=views, placements_made=self._placements_made)

    def _view(self, node: Node, model: ModelName, digest: int, now: float) -> NodeView:
        status = node.models.get(model)
        why_not = _why_not(node, model, status, digest)
        serving = None if why_not or status is None else self._model_view(node, status, now)
        return NodeView(
            identity=node.identity,
            up=node.up,
            draining=node.draining,
            capabilities=node.capabilities,
            serving=serving,
            why_not=why_not,
        )

    def _model_view(self, node: Node, status: ModelStatus, now: float) -> ModelView:
        claims = [claim for claim in node.claims.values() if claim.model == status.name]
        seen_before = node.status_at_s - STATUS_CROSSING_S
        return ModelView(
            window_tokens=status.window_tokens,
            lanes_free=max(status.lanes_total - status.lanes_used, 0),
            lanes_total=status.lanes_total,
            queued=status.queued,
            unseen=sum(claim.at_s > seen_before for claim in claims),
            in_flight=len(claims),
            sessions_placed=node.sessions_placed,
            kv_live_tokens=status.kv_live_tokens,
            kv_total_tokens=status.kv_total_tokens,
            decode_rate=status.decode_rate,
            prefill_rate=status.prefill_rate,
            status_age_s=now - node.status_at_s,
            tokenizer_digest=status.tokenizer_digest,
            numerics=status.numerics,
        )

    @staticmethod
    def _take_status(
        node: Node, models: tuple[ModelStatus, ...], host: HostStatus, now: float
    ) -> None:
        node.models = {status.name: status for status in models}
        node.host = host
        node.status_at_s = now


def _why_not(node: Node, model: ModelName, status: ModelStatus | None, digest: int) -> str:
    if not node.up:
        return f"down: {node.down_reason}" if node.down_reason else "down"
    if status is None:
        return f"does not serve {model}"
    if status.phase == "failed":
        return f"{model} failed to load there: {status.problem}"
    if status.phase != "ready":
        return f"{model} is {status.phase} there" + (f" ({status.problem})" * bool(status.problem))
    if node.has_just_died(status):
        return f"the worker for {model} there has just died"
    if digest and status.tokenizer_digest and status.tokenizer_digest != digest:
        return f"its tokenizer for {model} differs from the head's; import the same model file"
    return ""
