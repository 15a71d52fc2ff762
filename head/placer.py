"""Where the core's answers go: what placement is told of each, and what it decides.

A decision goes by the fleet as it is now, by what nodes hold of the prompt, and by the nodes that
an answer does not go to for a while. Deciding changes nothing; head/waiting.py acts on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from bus.capabilities import BLOBS, MEDIA, ONLY_TAGS, SAMPLING, TAGS_AT_START
from bus.ids import ModelName, NodeIdentity, NumericsId, count_ids
from bus.messages.sampling import Constraint
from head.affinity import Affinity
from head.answers import Answer
from head.fleet import Fleet
from head.placement import POLICIES, Placement, PlacementOptions, place
from head.policies import Case
from head.snapshot import NOTHING, FleetSnapshot, NodeView, PlacementRequest
from head.texts import TextDesk

#: The node that holds an answer's session already, if one does, and how many tokens of it.
Holder = Callable[[Answer], tuple[NodeIdentity, int] | None]
#: The nodes that an answer that may kill workers leaves to others for now.
SetApart = Callable[[Answer], frozenset[NodeIdentity]]


class Placer:
    """Owned by the waiting line.

    Attributes:
        policy: the placement policy's name.
        keeps_prefixes: whether that goes by what nodes hold of prompts.
    """

    def __init__(
        self,
        *,
        policy: str,
        options: PlacementOptions,
        fleet: Fleet,
        texts: TextDesk,
        affinity: Affinity,
        holder: Holder,
        set_apart_on: SetApart,
    ) -> None:
        self.policy = policy
        self.keeps_prefixes = POLICIES[policy].keeps_prefixes
        self._options = options
        self._fleet = fleet
        self._texts = texts
        self._affinity = affinity
        self._holder = holder
        self._set_apart_on = set_apart_on

    # --- decisions ----------------------------------------------------------------------------

    def where(
        self, answer: Answer, now: float, awaited: Mapping[NodeIdentity, int] = NOTHING
    ) -> Placement:
        """Where an answer should go.

        Args:
            awaited: how many requests wait for a full node of all.
        """
        return self._decide(answer, self._request(answer, now), now, awaited)

    def where_at_once(self, answer: Answer, now: float) -> Placement:
        """Where an answer that runs could go on, without waiting for who holds its prefix."""
        request = replace(self._request(answer, now), passed_s=math.inf)
        return self._decide(answer, request, now)

    def wanted(self, model: ModelName, context: bytes, expected_tokens: int) -> PlacementRequest:
        """What placement would have to know of a new request with this context, packed ids."""
        cached = NOTHING
        if self.keeps_prefixes:
            cached = self._affinity.cached_context(model, context)
        return PlacementRequest(
            model=model,
            prompt_tokens=count_ids(context),
            expected_tokens=expected_tokens,
            tokenizer_digest=self._texts.digest(model),
            cached=cached,
        )

    def where_new(
        self, request: PlacementRequest, now: float, holder: NodeIdentity | None = None
    ) -> Placement:
        """Where a request would go that came now.

        Args:
            holder: the node that its session is on; `request` says what that has of it.
        """
        snapshot = self._snapshot(request.model, now)
        placed = self._place(snapshot, request)
        if holder is None or self.keeps_prefixes or not self._stays(holder, snapshot, request):
            return placed
        return replace(placed, node=holder, policy=replace(placed.policy, behind=_behind_holder))

    def _decide(
        self,
        answer: Answer,
        request: PlacementRequest,
        now: float,
        awaited: Mapping[NodeIdentity, int] = NOTHING,
    ) -> Placement:
        snapshot = self._snapshot(answer.model, now, awaited)
        holder = self._holder(answer)
        if holder is not None and self.keeps_prefixes:
            node, tokens = holder
            tokens = max(tokens, request.cached.get(node, 0))
            request = replace(request, cached={**request.cached, node: tokens})
        elif holder is not None and (stays := self._stays(holder[0], snapshot, request)):
            return stays
        return self._place(snapshot, request)

    def _stays(
        self, holder: NodeIdentity, snapshot: FleetSnapshot, request: PlacementRequest
    ) -> Placement | None:
        """The decision for the node that holds the session, when that can begin at once.

        It is for policies that do not know by themselves what nodes hold.
        """
        there = tuple(view for view in snapshot.nodes if view.identity == holder)
        placed = self._place(replace(snapshot, nodes=there), request)
        return placed if placed.node is not None and _has_free_lane(there) else None

    def _snapshot(
        self, model: ModelName, now: float, awaited: Mapping[NodeIdentity, int] = NOTHING
    ) -> FleetSnapshot:
        return self._fleet.snapshot(model, now, awaited, self._affinity.prefilling(model))

    def _place(self, snapshot: FleetSnapshot, request: PlacementRequest) -> Placement:
        return place(self.policy, snapshot, request, self._options)

    # --- what is known of an answer -----------------------------------------------------------

    def refusals(self, answer: Answer) -> dict[NodeIdentity, str]:
        """The nodes that an answer does not go to now, with why. One that restarted is new."""
        tried = {
            node: why
            for node, (incarnation, why) in answer.tried.items()
            if (known := self._fleet.get(node)) and known.incarnation == incarnation
        }
        return tried | answer.resting

    def avoided(self, answer: Answer) -> frozenset[NodeIdentity]:
        """The nodes that an answer that may kill workers leaves to others for now."""
        return self._set_apart_on(answer)

    def _request(self, answer: Answer, now: float) -> PlacementRequest:
        """What placement has to know of an answer."""
        lost_node = bool(answer.tokens) or answer.failed_s is not None
        wanted = self._affinity.preference(answer.id)
        passed_s = math.inf if lost_node else 0.0 if wanted is None else now - wanted.since_s
        return PlacementRequest(
            model=answer.model,
            prompt_tokens=answer.context_tokens,
            expected_tokens=answer.remaining,
            qos=answer.qos,
            tokenizer_digest=answer.tokenizer_digest or self._texts.digest(answer.model),
            prefer_numerics=NumericsId(answer.numerics if answer.tokens else ""),
            excluded=frozenset(self.refusals(answer)) | self.avoided(answer),
            needs=_needs(answer),
            cached=self._affinity.cached(answer) if self.keeps_prefixes else NOTHING,
            passed_s=passed_s,
            lost_node=lost_node,
        )


def _needs(answer: Answer) -> tuple[str, ...]:
    """The capabilities that a node must have to run it as asked."""
    wanted = {
        BLOBS: bool(answer.blobs),
        MEDIA: bool(answer.media),
        SAMPLING: not answer.sampling.is_plain,
        TAGS_AT_START: _has_key(answer.sampling.constraint, "at_start"),
        ONLY_TAGS: _has_key(answer.sampling.constraint, "only_tags", "before"),
    }
    return tuple(name for name, is_wanted in wanted.items() if is_wanted)


def _has_key(constraint: Constraint | None, *keys: str) -> bool:
    """Whether a structural constraint may have one of these keys; older nodes know none of them."""
    return (
        constraint is not None
        and constraint.kind == "structural"
        and any(f'"{key}"' in constraint.source for key in keys)
    )


def _behind_holder(best: NodeView, other: NodeView, case: Case) -> str:
    return f"the session stays on {best.identity}, which holds it and has a free lane"


def _has_free_lane(views: Iterable[NodeView]) -> bool:
    """Whether nodes could all begin with one more generation at once."""
    return all(
        view.serving is not None and view.serving.in_flight < view.serving.lanes_total
        for view in views
    )
