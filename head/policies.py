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
        affinity_limit_s: how long a request waits at most for the node that holds its prefix; 0
            never waits.
    """

    pool_high_pct: float = 90.0
    status_fresh_s: float = 10.0
    nominal_decode_rate: float = 20.0
    nominal_prefill_rate: float = 200.0
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


def completion_ms(model: ModelView, case: Case, cached_tokens: int = 0) -> float:
    """Estimated milliseconds until the request would be complete on a node.

    Those that wait there go first. When they and the lanes that are free come out even, one lane of
    all has to end yet: without that, a full node would look like an idle one.

    Args:
        model: the node's view of the model.
        cached_tokens: leading tokens of the prompt that it holds.
    """
    request = case.request
    answer_ms = request.expected_tokens * 1000.0 / (model.decode_rate or case.missing.decode)
    whole_ms = answer_ms
    if case.snapshot.now_s - model.status_at_s > case.options.status_fresh_s:
        # An old status no longer says which lanes are free.
        whole_ms += model.in_flight * answer_ms
    elif (ahead := model.queued + model.unseen - model.lanes_free) >= 0:
        whole_ms += (ahead + 1 / max(model.lanes_total, 1)) * answer_ms
    todo = request.prompt_tokens - cached_tokens
    if todo > 0:
        whole_ms += todo * 1000.0 / (model.prefill_rate or case.missing.prefill)
    return whole_ms


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
    """The first by estimated completion, sessions placed, identity."""
    cached = case.request.cached
    best, best_ms = candidates[0], math.inf
    for node in candidates:
        held = cached.get(node.identity, 0) if cached else 0
        whole_ms = completion_ms(node.serving, case, held) if node.serving else math.inf
        if whole_ms < best_ms or (whole_ms == best_ms and _before(node, best)):
            best, best_ms = node, whole_ms
    return best


def _before(node: NodeView, other: NodeView) -> bool:
    """Whether a node goes before one that is as good."""
    ours, theirs = model_of(node), model_of(other)
    return (ours.sessions_placed, node.identity) < (theirs.sessions_placed, other.identity)


def estimate_ms(node: NodeView, case: Case) -> float:
    """Estimated milliseconds until a candidate would be through with the request."""
    return completion_ms(model_of(node), case, case.request.cached.get(node.identity, 0))


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
    if other_ms > best_ms:
        return f"would end after {other_ms:.0f} ms, {best.identity} after {best_ms:.0f} ms"
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
