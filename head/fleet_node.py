"""One node as the head sees it: its link, what it said, and the claims on its lanes.

A claim is made when a placement is decided and released when its generation ends; until a status
that could have counted it arrives it is *unseen* and added to what the status says. What placement
sees of a node is kept until something of it changes, so that a decision among a thousand nodes
costs no more than looking at them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from bus.ids import GenerationId, ModelName, NodeIdentity, WorkerIncarnation
from bus.messages.parts import HostStatus, ModelStatus, StageStatus
from bus.qos import AGE_S
from head.effects import LinkKey
from head.node_marks import NO_MARK, NodeMark
from head.snapshot import ModelView, NodeView
from head.stage_paths import Missing, layers_text

#: A status may have crossed a placement on its way: only older claims count as seen by it.
STATUS_CROSSING_S = 0.25


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
    #: Jobs there, by model (head/jobs.py).
    jobs: Counter[ModelName] = field(default_factory=Counter)
    #: Lanes that became free since the last status, which counts them as used.
    freed: Counter[ModelName] = field(default_factory=Counter)
    #: How many chains the workers of its stages are in that do not drive them (head/pipelines.py).
    chains: Counter[ModelName] = field(default_factory=Counter)
    #: Why models whose last stage it has are not served.
    missing: dict[ModelName, Missing] = field(default_factory=dict)
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
        busy = self.claims or self.jobs.total() or self.chains.total()
        return "draining" if busy else "drained"

    def has_just_died(self, status: ModelStatus) -> bool:
        """Whether the worker that a status tells of died after it, as far as is known."""
        worker, died_s = self.deaths.get(status.name, (None, 0.0))
        return status.worker == worker and self.status_at_s < died_s + STATUS_CROSSING_S

    def served_until_s(self, model: ModelName) -> float:
        """Of a model that it does not serve: until when it did, with its link or its worker lost.

        -inf when neither was the reason.
        """
        status = self.models.get(model)
        if not self.up and status is not None and status.phase == "ready":
            return self.since_s
        return self.deaths[model][1] if model in self.deaths else -math.inf

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


def _why_not(node: Node, model: ModelName, status: ModelStatus | None) -> str:
    if not node.up:
        return node.down_reason
    if status is None:
        return _has_of(node, model) or f"does not serve {model}"
    if status.phase == "failed":
        return f"{model} failed to load there: {status.problem}"
    if model in node.missing:
        return node.missing[model].words
    if status.kind == "stage" and status.stage is not None:
        return f"has layers {_layers(status.stage)} under this name: ask for {status.stage.model}"
    if status.phase != "ready":
        return f"{model} is {status.phase} there" + (f" ({status.problem})" * bool(status.problem))
    if node.has_just_died(status):
        return f"the worker for {model} there has just died"
    return ""


def _has_of(node: Node, model: ModelName) -> str:
    """What a node has of a model whose last stage it does not have; empty for nothing."""
    stages = (status.stage for status in node.models.values() if status.stage is not None)
    found = ", ".join(_layers(stage) for stage in stages if stage.model == model)
    return f"has only layers {found}, and the last ones are what requests go to" if found else ""


def _layers(stage: StageStatus) -> str:
    return f"{layers_text(stage.first, stage.end)} of {stage.layers} of {stage.model}"
