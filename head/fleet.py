"""The nodes of the fleet as the head sees them: links, statuses, claims, and snapshots of them.

A claim is made when a placement is decided and released when its generation ends; until a status
that could have counted it arrives it is *unseen* and added to what the status says. What placement
sees of a node is kept until something of it changes, so that a decision among a thousand nodes
costs no more than looking at them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from bus.ids import GenerationId, ModelName, NodeIdentity, WorkerIncarnation
from bus.messages.link import Heartbeat, NodeConfirm, NodeStatus
from bus.messages.parts import HostStatus, ModelStatus
from bus.qos import AGE_S, LOWEST_CLASS
from head.candidates import room
from head.effects import LinkKey
from head.node_marks import NO_MARK, NodeMark
from head.snapshot import NOTHING, FleetSnapshot, ModelView, NodeView

#: A status may have crossed a placement on its way: only older claims count as seen by it.
STATUS_CROSSING_S = 0.25
#: A node that comes back gets half its lanes until so many seconds have passed without a failure.
RETURN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DialedAddress:
    """An address of [fleet] nodes: `node` answered there last; `why_not` when it is not up."""

    address: str
    node: str
    up: bool
    why_not: str


@dataclass(slots=True, kw_only=True)
class Claim:
    """One generation placed on a node."""

    model: ModelName
    at_s: float
    qos: int


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
    #: It came back and has to show first that it stays.
    cautious_until_s: float = -math.inf
    #: How many claims each model has, in all and by QoS class.
    counts: Counter[ModelName] = field(default_factory=Counter)
    of_class: Counter[tuple[ModelName, int]] = field(default_factory=Counter)
    #: Lanes that became free since the last status, which counts them as used.
    freed: Counter[ModelName] = field(default_factory=Counter)
    #: What placement sees of each model; dropped by `changed`.
    views: dict[ModelName, NodeView] = field(default_factory=dict)

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
        self.changed()
        status = self.models.get(model)
        if status is None and phase == "loading":
            self.models[model] = ModelStatus(name=model, phase=phase)
        elif status is not None and phase == "unloading":
            self.models[model] = replace(status, phase=phase)

    def in_flight(self, model: ModelName) -> int:
        return self.counts[model]

    def claim(self, generation: GenerationId, claim: Claim) -> None:
        """Count a generation, at the end of the claims, which are in order of time."""
        self.release(generation)
        self.claims[generation] = claim
        self.counts[claim.model] += 1
        self.of_class[claim.model, claim.qos] += 1
        self.changed()

    def release(self, generation: GenerationId) -> None:
        """Count a generation no more; fine when it was not."""
        claim = self.claims.pop(generation, None)
        if claim is not None:
            self.counts[claim.model] -= 1
            self.of_class[claim.model, claim.qos] -= 1
            self.freed[claim.model] += self._is_seen(claim)
            self.changed()

    def changed(self) -> None:
        """Something changed that placement sees."""
        self.views.clear()

    def view(self, model: ModelName) -> NodeView:
        """The node as placement sees it for one model."""
        kept = self.views.get(model)
        # An operator's mark changes without a word.
        if kept is None or kept.draining is not self.draining:
            kept = self.views[model] = self._view(model)
        return kept

    def _view(self, model: ModelName) -> NodeView:
        status = self.models.get(model)
        why_not = _why_not(self, model, status)
        return NodeView(
            identity=self.identity,
            up=self.up,
            draining=self.draining,
            capabilities=self.capabilities,
            serving=None if why_not or status is None else self._model_view(status),
            why_not=why_not,
        )

    def _model_view(self, status: ModelStatus) -> ModelView:
        return ModelView(
            window_tokens=status.window_tokens,
            lanes_free=self._lanes_free(status),
            lanes_total=status.lanes_total,
            queued=status.queued,
            unseen=self._unseen(status.name),
            in_flight=self.counts[status.name],
            of_class=tuple(self.of_class[status.name, qos] for qos in range(len(AGE_S))),
            sessions_placed=self.sessions_placed,
            kv_live_tokens=status.kv_live_tokens,
            kv_total_tokens=status.kv_total_tokens,
            decode_rate=status.decode_rate,
            prefill_rate=status.prefill_rate,
            status_at_s=self.status_at_s,
            cautious_until_s=self.cautious_until_s,
            tokenizer_digest=status.tokenizer_digest,
            numerics=status.numerics,
        )

    def _lanes_free(self, status: ModelStatus) -> int:
        free = status.lanes_total - status.lanes_used + self.freed[status.name]
        return min(max(free, 0), status.lanes_total)

    def _is_seen(self, claim: Claim) -> bool:
        return claim.at_s <= self.status_at_s - STATUS_CROSSING_S

    def _unseen(self, model: ModelName) -> int:
        """Claims that the last status can not have counted: the newest ones."""
        unseen = 0
        for claim in reversed(self.claims.values()):
            if self._is_seen(claim):
                break
            unseen += claim.model == model
        return unseen


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

    def loading(self, model: ModelName) -> bool:
        """Whether any node that is up is loading the model, or will as its worker just died."""
        return any(
            node.up
            and not node.draining
            and (status := node.models.get(model))
            and (status.phase == "loading" or node.has_just_died(status))
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

    def has_room_on(self, identity: NodeIdentity, model: ModelName, qos: int, now: float) -> bool:
        """Whether this node may."""
        node = self._nodes.get(identity)
        return node is not None and _has_room(node.view(model), qos, now)

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


def _why_not(node: Node, model: ModelName, status: ModelStatus | None) -> str:
    if not node.up:
        return node.down_reason
    if status is None:
        return f"does not serve {model}"
    if status.phase == "failed":
        return f"{model} failed to load there: {status.problem}"
    if status.phase != "ready":
        return f"{model} is {status.phase} there" + (f" ({status.problem})" * bool(status.problem))
    if node.has_just_died(status):
        return f"the worker for {model} there has just died"
    return ""
