"""How a policy orders the candidates, and why it puts one behind another, in words.

load-aware     without nodes whose KV is nearly full (unless all are), equal numerics first
               for a moved stream, then estimated completion, sessions placed, identity
least-loaded   generations in flight, sessions placed, identity
round-robin    the nodes in turn, passing over those that are no candidates
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bus.errors import Internal
from bus.ids import NodeIdentity
from head.snapshot import FleetSnapshot, ModelView, NodeView, PlacementRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """The figures that placement goes by.

    Attributes:
        pool_high_pct: share of live KV, in percent, from which a node is left alone.
        status_fresh_s: age from which a status says nothing about load any more.
        nominal_decode_rate, nominal_prefill_rate: tokens/s when no node reported a rate.
        alike_pct: estimates that differ by no more, in percent, count as equal.
        affinity_limit_s: how long a request waits at most for the node that holds its prefix; 0
            never waits.
    """

    pool_high_pct: float = 90.0
    status_fresh_s: float = 10.0
    nominal_decode_rate: float = 20.0
    nominal_prefill_rate: float = 200.0
    alike_pct: float = 25.0
    affinity_limit_s: float = 10.0


DEFAULT_OPTIONS = PlacementOptions()


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens/s of a node that reported none."""

    decode: float
    prefill: float


@dataclass(frozen=True, slots=True)
class Case:
    """What a policy decides on, besides the candidates."""

    snapshot: FleetSnapshot
    request: PlacementRequest
    options: PlacementOptions
    missing: Rates


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to choose.

    Attributes:
        choose: the best of at least one candidate.
        behind: of the best and another candidate, why that one is not it.
        keeps_prefixes: it knows what nodes hold, and may wait for one that holds more.
    """

    choose: Callable[[Sequence[NodeView], Case], NodeView]
    behind: Callable[[NodeView, NodeView, Case], str]
    keeps_prefixes: bool = False


def model_of(node: NodeView) -> ModelView:
    """What a candidate says of the model.

    Raises:
        Internal: it is no candidate, it does not serve one.
    """
    if node.serving is None:
        raise Internal(f"node {node.identity} serves nothing and was taken for a candidate")
    return node.serving


# --- load-aware -------------------------------------------------------------------------------


def estimates_ms(nodes: Sequence[NodeView], case: Case) -> list[float]:
    """For each node, milliseconds within which the request should be complete there.

    Those that wait there, or at the head for it, go first, and where no lane is left one has to end
    yet. That counts as a whole answer, since those that run may have just begun: the first of
    several lanes ends sooner on average, but a few requests in a hundred would wait nearly so long
    for their first token, while another node could have begun at once. What the node has to compute
    of other prompts comes before this one's, and what it holds of this one saves its time.
    One loop for all nodes: this is most of what a decision costs.
    """
    request, missing, now = case.request, case.missing, case.snapshot.now_s
    fresh_s, answer = case.options.status_fresh_s, request.expected_tokens * 1000.0
    held, prefilling = dict(request.cached), dict(case.snapshot.prefilling)
    awaited = dict(case.snapshot.awaited)
    found = []
    for node in nodes:
        model = node.serving
        if model is None:
            found.append(math.inf)
            continue
        answer_ms = answer / (model.decode_rate or missing.decode)
        whole_ms = answer_ms
        before = awaited.get(node.identity, 0) if awaited else 0
        if now - model.status_at_s > fresh_s:
            # An old status no longer says which lanes are free.
            whole_ms += (model.in_flight + before) * answer_ms
        elif (ahead := before + model.queued + model.unseen - model.lanes_free) >= 0:
            whole_ms += (ahead + 1) * answer_ms
        todo = request.prompt_tokens
        if held:
            todo = max(todo - held.get(node.identity, 0), 0)
        if prefilling:
            todo += prefilling.get(node.identity, 0)
        found.append(whole_ms + todo * 1000.0 / (model.prefill_rate or missing.prefill))
    return found


def _load_aware(candidates: Sequence[NodeView], case: Case) -> NodeView:
    if case.request.prefer_numerics:
        low = [node for node in candidates if not pool_is_high(model_of(node), case)] or candidates
        equal = [node for node in low if not _differs(model_of(node), case.request)]
        return _soonest(equal or low, case)
    best = _soonest(candidates, case)
    # Few are nearly full: look for them only when the best of all is one.
    if pool_is_high(model_of(best), case):
        low = [node for node in candidates if not pool_is_high(model_of(node), case)]
        return _soonest(low, case) if low else best
    return best


def _soonest(candidates: Sequence[NodeView], case: Case) -> NodeView:
    """The first by estimated completion, share of lanes in use, sessions placed, identity.

    Estimates count as equal within `alike_pct` where a node holds as much of the prompt: rates are
    measured, and vary by as much from one second to the next.
    """
    estimates = estimates_ms(candidates, case)
    soonest_ms = min(estimates)
    limit_ms = soonest_ms * (1.0 + case.options.alike_pct / 100.0)
    held = case.request.cached
    least = held.get(candidates[estimates.index(soonest_ms)].identity, 0) if held else 0
    best, calmest = candidates[0], (math.inf, 0, 0, candidates[0].identity)
    for node, whole_ms in zip(candidates, estimates, strict=True):
        if (
            whole_ms <= limit_ms
            and not (least and held.get(node.identity, 0) < least)
            and _share(node) <= calmest[0]
            and (calmness := _calmness(node, case)) < calmest
        ):
            best, calmest = node, calmness
    return best


def _share(node: NodeView) -> float:
    """Generations for each lane."""
    model = node.serving
    return model.in_flight / (model.lanes_total or 1) if model is not None else math.inf


def _calmness(node: NodeView, case: Case) -> tuple[float, int, int, NodeIdentity]:
    """What orders nodes that are as good as each other."""
    prefilling = case.snapshot.prefilling.get(node.identity, 0)
    return _share(node), prefilling, model_of(node).sessions_placed, node.identity


def estimate_ms(node: NodeView, case: Case) -> float:
    """Estimated milliseconds until a candidate would be through with the request."""
    return estimates_ms([node], case)[0]


def _differs(model: ModelView, request: PlacementRequest) -> bool:
    wanted = request.prefer_numerics
    return bool(wanted) and model.numerics != wanted


def pool_is_high(model: ModelView, case: Case) -> bool:
    """Whether a node's KV is nearly full, by a status that is fresh."""
    return (
        model.kv_live_tokens * 100.0 >= case.options.pool_high_pct * model.kv_total_tokens > 0
        and case.snapshot.now_s - model.status_at_s < case.options.status_fresh_s
    )


def _behind_load_aware(best: NodeView, other: NodeView, case: Case) -> str:
    ours, theirs = model_of(best), model_of(other)
    if pool_is_high(theirs, case) and not pool_is_high(ours, case):
        share = 100.0 * theirs.kv_live_tokens / theirs.kv_total_tokens
        return f"its KV cache is {share:.0f}% in use"
    if _differs(theirs, case.request) and not _differs(ours, case.request):
        return f"would not continue bit by bit as {best.identity} does"
    best_ms, other_ms = estimate_ms(best, case), estimate_ms(other, case)
    limit_ms = best_ms * (1.0 + case.options.alike_pct / 100.0)
    if other_ms > limit_ms or (
        other_ms > best_ms and _calmness(other, case) < _calmness(best, case)
    ):
        return f"would end after {other_ms:.0f} ms, {best.identity} after {best_ms:.0f} ms"
    held = case.request.cached
    less = held.get(best.identity, 0) - held.get(other.identity, 0)
    if less > 0:
        return f"holds {less} tokens of the prompt less than {best.identity}"
    if theirs.in_flight * max(ours.lanes_total, 1) > ours.in_flight * max(theirs.lanes_total, 1):
        return (
            f"as good as {best.identity}, but has {theirs.in_flight} generations on "
            f"{theirs.lanes_total} lanes"
        )
    return _tie(best, other)


def _tie(best: NodeView, other: NodeView) -> str:
    if model_of(other).sessions_placed > model_of(best).sessions_placed:
        return f"as good as {best.identity}, but more sessions were placed there"
    return f"as good as {best.identity}, which comes first by name"


# --- least-loaded and round-robin -------------------------------------------------------------


def _least_loaded(candidates: Sequence[NodeView], case: Case) -> NodeView:
    def key(node: NodeView) -> tuple[int, int, NodeIdentity]:
        model = model_of(node)
        return model.in_flight, model.sessions_placed, node.identity

    return min(candidates, key=key)


def _behind_least_loaded(best: NodeView, other: NodeView, case: Case) -> str:
    ours, theirs = model_of(best).in_flight, model_of(other).in_flight
    if theirs > ours:
        return f"has {theirs} generations in flight, {best.identity} {ours}"
    return _tie(best, other)


def _round_robin(candidates: Sequence[NodeView], case: Case) -> NodeView:
    everyone = sorted(node.identity for node in case.snapshot.nodes)
    first = case.snapshot.placements_made % len(everyone)

    def turn(node: NodeView) -> int:
        return (bisect_left(everyone, node.identity) - first) % len(everyone)

    return min(candidates, key=turn)


def _behind_round_robin(best: NodeView, other: NodeView, case: Case) -> str:
    return f"its turn is after {best.identity}'s"


POLICIES: Mapping[str, Policy] = {
    "load-aware": Policy(_load_aware, _behind_load_aware, keeps_prefixes=True),
    "least-loaded": Policy(_least_loaded, _behind_least_loaded),
    "round-robin": Policy(_round_robin, _behind_round_robin),
}
DEFAULT_POLICY = "load-aware"
