"""Where a request goes: three policies as pure functions over one snapshot of the fleet.

First come the conditions that every policy shares: a *candidate* is up, not draining, serves the
model, has the fleet's tokenizer, was not tried already, has a window that holds the prompt and
room for one more generation. Then the policy orders the candidates:

    load-aware     without nodes whose KV is nearly full (unless all are), equal numerics first
                   for a moved stream, then estimated completion, sessions placed, identity
    least-loaded   generations in flight, sessions placed, identity
    round-robin    the nodes in turn, passing over those that are no candidates

Every node that is not taken gets its reason in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from bus.errors import (
    ContextLengthExceeded,
    Invalid,
    NoNode,
    SuperfluidError,
    UnsupportedOnFleet,
)
from bus.ids import NodeIdentity
from head.snapshot import FleetSnapshot, ModelView, NodeView, PlacementRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """The figures that placement goes by.

    Attributes:
        pool_high_pct: share of live KV, in percent, from which a node is left alone.
        status_fresh_s: age from which a status says nothing about load any more.
        nominal_decode_rate, nominal_prefill_rate: tokens/s when no node reported a rate.
    """

    pool_high_pct: float = 90.0
    status_fresh_s: float = 10.0
    nominal_decode_rate: float = 20.0
    nominal_prefill_rate: float = 200.0


DEFAULT_OPTIONS = PlacementOptions()

#: A node gets its free lanes and this many more, so that the next one is there when a lane ends.
LANES_AHEAD = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision. No node and no error means: wait, all that could serve it are full.

    Attributes:
        node: where it goes.
        reasons: every node that was passed over, with why.
        error: why it can go nowhere.
    """

    node: NodeIdentity | None
    reasons: tuple[tuple[NodeIdentity, str], ...]
    error: SuperfluidError | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could take the request, and what it says of the model."""

    identity: NodeIdentity
    model: ModelView


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


#: Best candidate first, and why each of the others is not.
Order = tuple[Sequence[Candidate], Mapping[NodeIdentity, str]]
Policy = Callable[[Sequence[Candidate], Case], Order]


def place(
    policy: str,
    snapshot: FleetSnapshot,
    request: PlacementRequest,
    options: PlacementOptions = DEFAULT_OPTIONS,
) -> Placement:
    """Choose a node for a request.

    Raises:
        Invalid: no such policy.
    """
    if policy not in POLICIES:
        raise Invalid(
            f"there is no placement policy {policy!r}; choose one of {', '.join(POLICIES)}",
            param="placement",
        )
    reasons: dict[NodeIdentity, str] = {}
    able = _keep(_views(snapshot, request, reasons), reasons, lambda c: _tokenizer(c, request))
    untried = _keep(able, reasons, lambda c: _tried(c, request))
    fitting = _keep(untried, reasons, lambda c: _window(c, request))
    if not fitting:
        holds = any(not _window(c, request) for c in able)
        if untried and not holds:
            return Placement(None, _listed(reasons), _too_long(able, request))
        old = [] if able else [n for n in snapshot.nodes if _too_old(n, request)]
        error = _unsupported(old, request) if old else _no_node(reasons, request)
        return Placement(None, _listed(reasons), error)
    open_now = _keep(fitting, reasons, _room)
    if not open_now:
        return Placement(None, _listed(reasons), None)
    case = Case(snapshot, request, options, _mean_rates(able, options))
    order, others = POLICIES[policy](open_now, case)
    reasons.update(others)
    return Placement(order[0].identity, _listed(reasons), None)


# --- who is a candidate -----------------------------------------------------------------------


def _views(
    snapshot: FleetSnapshot, request: PlacementRequest, reasons: dict[NodeIdentity, str]
) -> list[Candidate]:
    found = []
    for node in snapshot.nodes:
        if not node.up or node.draining or node.serving is None:
            reasons[node.identity] = _not_serving(node, request)
        elif lacking := _lacking(node, request):
            reasons[node.identity] = lacking
        else:
            found.append(Candidate(node.identity, node.serving))
    return found


def _not_serving(node: NodeView, request: PlacementRequest) -> str:
    if not node.up:
        return f"is down ({node.why_not})" if node.why_not else "is down"
    if node.draining:
        return "is draining"
    return node.why_not or f"does not serve {request.model}"


def _lacking(node: NodeView, request: PlacementRequest) -> str:
    missing = [f"'{name}'" for name in request.needs if name not in node.capabilities]
    return f"its version does not know {', '.join(missing)}; update it" if missing else ""


def _keep(
    candidates: Iterable[Candidate],
    reasons: dict[NodeIdentity, str],
    objection: Callable[[Candidate], str],
) -> list[Candidate]:
    kept = []
    for candidate in candidates:
        reason = objection(candidate)
        if reason:
            reasons[candidate.identity] = reason
        else:
            kept.append(candidate)
    return kept


def _tokenizer(candidate: Candidate, request: PlacementRequest) -> str:
    theirs, ours = candidate.model.tokenizer_digest, request.tokenizer_digest
    # A node that does not know its digest (0) only ever sees token ids, so it may serve.
    if theirs and ours and theirs != ours:
        return "has another tokenizer for this model than the fleet"
    return ""


def _tried(candidate: Candidate, request: PlacementRequest) -> str:
    return "was tried for this request already" if candidate.identity in request.excluded else ""


def _window(candidate: Candidate, request: PlacementRequest) -> str:
    window = candidate.model.window_tokens
    if window and request.prompt_tokens > window:
        return f"its window of {window} tokens does not hold the prompt's {request.prompt_tokens}"
    return ""


def _room(candidate: Candidate) -> str:
    model = candidate.model
    if not model.lanes_total:
        return "has no lanes"
    if model.in_flight >= model.lanes_total + LANES_AHEAD:
        return f"has no room: {model.in_flight} generations on {model.lanes_total} lanes"
    return ""


def _listed(reasons: Mapping[NodeIdentity, str]) -> tuple[tuple[NodeIdentity, str], ...]:
    return tuple(sorted(reasons.items()))


def _too_long(candidates: Sequence[Candidate], request: PlacementRequest) -> SuperfluidError:
    largest = max(candidate.model.window_tokens for candidate in candidates)
    return ContextLengthExceeded(
        f"the prompt has {request.prompt_tokens} tokens and the largest window for "
        f"{request.model} is {largest}; shorten the prompt",
        details={"length": request.prompt_tokens, "max": largest},
    )


def _too_old(node: NodeView, request: PlacementRequest) -> bool:
    serves = node.up and not node.draining and node.serving is not None
    return serves and bool(_lacking(node, request))


def _unsupported(nodes: Sequence[NodeView], request: PlacementRequest) -> SuperfluidError:
    names = ", ".join(sorted(node.identity for node in nodes))
    return UnsupportedOnFleet(
        f"no node that serves {request.model} can take this request: {names} run versions that do "
        f"not know {', '.join(request.needs)}; update superfluid there",
        details={"nodes": {node.identity: _lacking(node, request) for node in nodes}},
    )


def _no_node(reasons: Mapping[NodeIdentity, str], request: PlacementRequest) -> SuperfluidError:
    why = "; ".join(f"{identity} {reason}" for identity, reason in sorted(reasons.items()))
    lacks = f"does not serve {request.model}"
    idle = next((identity for identity, reason in sorted(reasons.items()) if reason == lacks), "")
    load = f"have one serve it: sfctl model load {request.model} {idle}, or " if idle else ""
    return NoNode(
        f"no node can serve {request.model} now ({why or 'no node has joined'}); {load}"
        "start a node that has the model, or wait for one (`sfctl node ls` shows them)",
        details={"nodes": dict(sorted(reasons.items()))},
    )


# --- load-aware -------------------------------------------------------------------------------


def _load_aware(candidates: Sequence[Candidate], case: Case) -> Order:
    reasons: dict[NodeIdentity, str] = {}
    kept = _keep(candidates, reasons, lambda c: _pool(c, case.options))
    if not kept:
        kept, reasons = list(candidates), {}
    estimates = {
        c.identity: completion_ms(c.model, case.request, case.missing, case.options) for c in kept
    }

    def key(c: Candidate) -> tuple[bool, float, int, NodeIdentity]:
        return _differs(c, case.request), estimates[c.identity], c.model.sessions_placed, c.identity

    order = sorted(kept, key=key)
    best = order[0]
    for other in order[1:]:
        reasons[other.identity] = _behind(
            best, other, case.request, estimates[best.identity], estimates[other.identity]
        )
    return order, reasons


def _differs(candidate: Candidate, request: PlacementRequest) -> bool:
    wanted = request.prefer_numerics
    return bool(wanted) and candidate.model.numerics != wanted


def _pool(candidate: Candidate, options: PlacementOptions) -> str:
    model = candidate.model
    if not model.kv_total_tokens or model.status_age_s >= options.status_fresh_s:
        return ""
    share = 100.0 * model.kv_live_tokens / model.kv_total_tokens
    return f"its KV cache is {share:.0f}% in use" if share >= options.pool_high_pct else ""


def completion_ms(
    model: ModelView,
    request: PlacementRequest,
    missing: Rates,
    options: PlacementOptions = DEFAULT_OPTIONS,
) -> float:
    """Estimated milliseconds until the request would be complete on a node.

    Args:
        model: the node's view of the model.
        missing: rates that stand in for those that the node did not report.
    """
    decode = model.decode_rate or missing.decode
    prefill = model.prefill_rate or missing.prefill
    answer_ms = request.expected_tokens * 1000.0 / decode
    prefill_ms = max(0, request.prompt_tokens - model.cached_tokens) * 1000.0 / prefill
    return _ahead(model, options) * answer_ms + prefill_ms + answer_ms


def _ahead(model: ModelView, options: PlacementOptions) -> int:
    """Generations that would go first. An old status no longer says which lanes are free."""
    if model.status_age_s > options.status_fresh_s:
        return model.in_flight
    return max(0, model.queued + model.unseen - model.lanes_free)


def _mean_rates(candidates: Sequence[Candidate], options: PlacementOptions) -> Rates:
    def mean(rates: list[float], nominal: float) -> float:
        return sum(rates) / len(rates) if rates else nominal

    return Rates(
        mean(
            [c.model.decode_rate for c in candidates if c.model.decode_rate],
            options.nominal_decode_rate,
        ),
        mean(
            [c.model.prefill_rate for c in candidates if c.model.prefill_rate],
            options.nominal_prefill_rate,
        ),
    )


def _behind(
    best: Candidate, other: Candidate, request: PlacementRequest, best_ms: float, other_ms: float
) -> str:
    if _differs(other, request) and not _differs(best, request):
        return f"would not continue bit by bit as {best.identity} does"
    if other_ms > best_ms:
        return f"would end after {other_ms:.0f} ms, {best.identity} after {best_ms:.0f} ms"
    return _tie(best, other)


def _tie(best: Candidate, other: Candidate) -> str:
    if other.model.sessions_placed > best.model.sessions_placed:
        return f"as good as {best.identity}, but more sessions were placed there"
    return f"as good as {best.identity}, which comes first by name"


# --- least-loaded and round-robin -------------------------------------------------------------


def _least_loaded(candidates: Sequence[Candidate], case: Case) -> Order:
    order = sorted(
        candidates, key=lambda c: (c.model.in_flight, c.model.sessions_placed, c.identity)
    )
    best = order[0]
    reasons = {}
    for other in order[1:]:
        if other.model.in_flight > best.model.in_flight:
            reasons[other.identity] = (
                f"has {other.model.in_flight} generations in flight, "
                f"{best.identity} {best.model.in_flight}"
            )
        else:
            reasons[other.identity] = _tie(best, other)
    return order, reasons


def _round_robin(candidates: Sequence[Candidate], case: Case) -> Order:
    everyone = sorted(node.identity for node in case.snapshot.nodes)
    first = case.snapshot.placements_made % len(everyone)
    turn = dict(zip(everyone[first:] + everyone[:first], count(), strict=False))
    order = sorted(candidates, key=lambda c: turn[c.identity])
    reasons = {c.identity: f"its turn is after {order[0].identity}'s" for c in order[1:]}
    return order, reasons


POLICIES: Mapping[str, Policy] = {
    "load-aware": _load_aware,
    "least-loaded": _least_loaded,
    "round-robin": _round_robin,
}
DEFAULT_POLICY = "load-aware"


# --- claims -----------------------------------------------------------------------------------


def with_claim(snapshot: FleetSnapshot, node: NodeIdentity) -> FleetSnapshot:
    """The snapshot after one more generation went to `node`, before any status counts it."""

    def claimed(view: NodeView) -> NodeView:
        model = view.serving
        if view.identity != node or model is None:
            return view
        return replace(
            view,
            serving=replace(
                model,
                unseen=model.unseen + 1,
                in_flight=model.in_flight + 1,
                sessions_placed=model.sessions_placed + 1,
            ),
        )

    return FleetSnapshot(
        nodes=tuple(claimed(view) for view in snapshot.nodes),
        placements_made=snapshot.placements_made + 1,
    )
