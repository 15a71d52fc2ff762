"""Where a request goes: a pure function over one snapshot of the fleet.

First come the conditions that every policy shares (head/candidates.py), then the policy chooses
among the candidates (head/policies.py). Last, load-aware placement asks whether to wait for a node
whose lanes are all taken but that holds much more of the prompt than the best one with a free lane:
it waits when its turn there should come before that one would have computed the same tokens again,
and no longer than that takes (`affinity_limit_s` at most). So a hot prefix spreads to other nodes
as soon as its node is the slower way. It waits here and not in the line of one node, since of
several that hold the prefix the first to have a free lane is to get it.

The decision is made for every request, its reasons for few: `Placement.reasons` and
`Placement.error` make their words when they are asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bus.errors import (
    ContextLengthExceeded,
    Invalid,
    NoNode,
    SuperfluidError,
    UnsupportedOnFleet,
)
from bus.ids import NodeIdentity
from bus.qos import LOWEST_CLASS
from head.candidates import (
    LANES_AHEAD,
    Standing,
    by_standing,
    has_lane,
    lacking,
    objection,
    standing,
)
from head.policies import (
    DEFAULT_OPTIONS,
    DEFAULT_POLICY,
    POLICIES,
    Case,
    PlacementOptions,
    Policy,
    Rates,
    estimate_ms,
    model_of,
)
from head.snapshot import FleetSnapshot, NodeView, PlacementRequest

__all__ = [
    "DEFAULT_OPTIONS",
    "DEFAULT_POLICY",
    "LANES_AHEAD",
    "POLICIES",
    "Placement",
    "PlacementOptions",
    "Rates",
    "estimate_ms",
    "mean_rates",
    "place",
    "with_claim",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The decision. No node and no failure means: wait.

    Attributes:
        node: where it goes.
        waits_for: a node whose lanes are taken, that it waits for though another is open.
        wait_s: for how long at most.
        open_to: the node that it would go to instead of waiting.
        fails: what kind of error it is that it can go nowhere.
    """

    case: Case
    policy: Policy
    node: NodeIdentity | None = None
    waits_for: NodeIdentity | None = None
    wait_s: float = 0.0
    open_to: NodeIdentity | None = None
    fails: type[SuperfluidError] | None = None

    @property
    def reasons(self) -> tuple[tuple[NodeIdentity, str], ...]:
        """Every node that was passed over, with why; by identity."""
        named = {node.identity: node for node in self.case.snapshot.nodes}
        best = named.get(self.node or self.open_to or NodeIdentity(""))
        return tuple(
            (identity, self._reason(named[identity], best))
            for identity in sorted(named)
            if identity != self.node
        )

    @property
    def error(self) -> SuperfluidError | None:
        """Why it can go nowhere."""
        if self.fails is None:
            return None
        return _ERRORS[self.fails](self)

    def _reason(self, node: NodeView, best: NodeView | None) -> str:
        request = self.case.request
        why = objection(node, request, self.case.snapshot.now_s)
        if why or best is None:
            return why
        if _cuts(node, request) and not _cuts(best, request):
            return (
                f"would cut the answer at its window of {model_of(node).window_tokens} tokens; "
                f"{request.prompt_tokens} and up to {request.expected_tokens} are wanted"
            )
        if node is best:
            held = request.cached.get(self.waits_for or NodeIdentity(""), 0)
            return (
                f"is left alone for {self.wait_s:.1f} s at most: {self.waits_for} holds {held} of "
                f"the prompt's {request.prompt_tokens} tokens and should be free before"
            )
        if (self.waits_for or _has_waited(request)) and not has_lane(node, request.qos):
            model = model_of(node)
            return f"has no free lane: {model.in_flight} generations on {model.lanes_total} lanes"
        return self.policy.behind(best, node, self.case)


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
    chosen = POLICIES[policy]
    open_now, full, seen = by_standing(snapshot, request)
    open_now = _whole(open_now, request)
    case = Case(snapshot, request, options, _missing_rates([*open_now, *full], options))
    if not open_now:
        fails = None if full else _failure(snapshot, request, seen)
        return Placement(case=case, policy=chosen, fails=fails)
    best = chosen.choose(open_now, case)
    if chosen.keeps_prefixes and request.cached:
        open_to, taken = _instead_of_waiting(best, open_now, full, chosen, case)
        waits_for, wait_s = _worth_waiting_for(open_to, taken, case)
        if waits_for is not None:
            return Placement(
                case=case,
                policy=chosen,
                waits_for=waits_for,
                wait_s=wait_s,
                open_to=open_to.identity,
            )
        best = open_to if _has_waited(request) else best
    return Placement(case=case, policy=chosen, node=best.identity)


def _whole(open_now: list[NodeView], request: PlacementRequest) -> list[NodeView]:
    """Without the nodes that would cut the answer, when another one holds it whole.

    None is waited for: few answers become as long as they may.
    """
    whole = [node for node in open_now if not _cuts(node, request)]
    return whole or open_now


def _cuts(node: NodeView, request: PlacementRequest) -> bool:
    """Whether the answer may become longer than the node's window; 0 is not known."""
    window = model_of(node).window_tokens
    return 0 < window < request.prompt_tokens + request.expected_tokens


def _missing_rates(nodes: Sequence[NodeView], options: PlacementOptions) -> Rates:
    """What stands in for rates that nodes did not report; looked for only when one did not."""
    for node in nodes:
        model = node.serving
        if model is not None and not (model.decode_rate and model.prefill_rate):
            return mean_rates(nodes, options)
    return Rates(options.nominal_decode_rate, options.nominal_prefill_rate)


def mean_rates(nodes: Sequence[NodeView], options: PlacementOptions = DEFAULT_OPTIONS) -> Rates:
    """The mean of the rates that nodes reported; the nominal ones when none did."""

    def mean(rates: list[float], nominal: float) -> float:
        reported = [rate for rate in rates if rate]
        return sum(reported) / len(reported) if reported else nominal

    models = [model_of(node) for node in nodes]
    return Rates(
        mean([model.decode_rate for model in models], options.nominal_decode_rate),
        mean([model.prefill_rate for model in models], options.nominal_prefill_rate),
    )


# --- waiting for the node that holds the prefix -----------------------------------------------


def _instead_of_waiting(
    best: NodeView,
    open_now: Sequence[NodeView],
    full: Sequence[NodeView],
    policy: Policy,
    case: Case,
) -> tuple[NodeView, Sequence[NodeView]]:
    """The best node that could begin at once, and those that are worth waiting for if any is.

    When none could, `best` and the full ones: a place in its line is all that there is to have.
    """
    if has_lane(best, case.request.qos):
        return best, full
    could = [node for node in open_now if has_lane(node, case.request.qos)]
    if not could:
        return best, full
    could_not = [node for node in open_now if not has_lane(node, case.request.qos)]
    return policy.choose(could, case), [*full, *could_not]


def _has_waited(request: PlacementRequest) -> bool:
    """Whether it has waited for a node in vain, and is to go where it begins at once."""
    return 0.0 < request.passed_s < math.inf


def _worth_waiting_for(
    best: NodeView, taken: Sequence[NodeView], case: Case
) -> tuple[NodeIdentity | None, float]:
    """A node without a free lane that should be through before `best`, and how long to wait for it.

    Its turn comes after those that wait for it already, at the rate at which its lanes end. The
    wait is as long at most as the request would take longer on `best`.
    """
    request, options = case.request, case.options
    cached = request.cached.get(best.identity, 0)
    prefill = model_of(best).prefill_rate or case.missing.prefill
    before = case.snapshot.prefilling.get(best.identity, 0)
    there_ms = before * 1000.0 / prefill + _alone_ms(best, cached, case)
    soonest_ms = estimate_ms(best, case)
    found: tuple[NodeIdentity | None, float] = (None, 0.0)
    for node in taken:
        held = request.cached.get(node.identity, 0)
        alone_ms = _alone_ms(node, held, case)
        longer_s = (there_ms - alone_ms) / 1000.0
        limit_s = min(longer_s, options.affinity_limit_s) - request.passed_s
        if not held or limit_s <= 0:
            continue
        turn_ms = _turn_ms(node, case)
        through_ms = turn_ms + alone_ms
        if turn_ms <= limit_s * 1000.0 and through_ms < soonest_ms:
            soonest_ms, found = through_ms, (node.identity, limit_s)
    return found


def _turn_ms(node: NodeView, case: Case) -> float:
    """When a lane of a node without a free one should be there for one more request."""
    model = model_of(node)
    answer_ms = case.request.expected_tokens * 1000.0 / (model.decode_rate or case.missing.decode)
    ends = model.in_flight - model.lanes_total + 1 + case.snapshot.awaited.get(node.identity, 0)
    return max(ends, 1) * answer_ms / model.lanes_total


def _alone_ms(node: NodeView, held: int, case: Case) -> float:
    """What the request takes on a node once it has a lane."""
    model, request = model_of(node), case.request
    prefill_ms = (
        max(request.prompt_tokens - held, 0) * 1000.0 / (model.prefill_rate or case.missing.prefill)
    )
    return prefill_ms + request.expected_tokens * 1000.0 / (
        model.decode_rate or case.missing.decode
    )


# --- nowhere to go ----------------------------------------------------------------------------


def _failure(
    snapshot: FleetSnapshot, request: PlacementRequest, seen: set[Standing]
) -> type[SuperfluidError]:
    """What kind of error it is when no node could take a request even if it had room."""
    if Standing.TOO_SHORT in seen and not _tried_one_holds(snapshot, request):
        return ContextLengthExceeded
    able = seen & {Standing.TRIED, Standing.TOO_SHORT}
    return UnsupportedOnFleet if Standing.LACKING in seen and not able else NoNode


def _tried_one_holds(snapshot: FleetSnapshot, request: PlacementRequest) -> bool:
    """Whether the prompt fits a node that was tried: then its length is not the reason."""
    return any(
        standing(node, request, snapshot.now_s) is Standing.TRIED
        and not request.prompt_tokens > model_of(node).window_tokens > 0
        for node in snapshot.nodes
    )


def _too_long(placement: Placement) -> SuperfluidError:
    request = placement.case.request
    short = {Standing.TOO_SHORT, Standing.TRIED}
    largest = max(
        model_of(node).window_tokens
        for node in placement.case.snapshot.nodes
        if standing(node, request, placement.case.snapshot.now_s) in short
    )
    return ContextLengthExceeded(
        f"the prompt has {request.prompt_tokens} tokens and the largest window for "
        f"{request.model} is {largest}; shorten the prompt",
        details={"length": request.prompt_tokens, "max": largest},
    )


def _unsupported(placement: Placement) -> SuperfluidError:
    request = placement.case.request
    old = {
        node.identity: lacking(node, request)
        for node in placement.case.snapshot.nodes
        if standing(node, request, placement.case.snapshot.now_s) is Standing.LACKING
    }
    return UnsupportedOnFleet(
        f"no node that serves {request.model} can take this request: {', '.join(sorted(old))} run "
        f"versions that do not know {', '.join(request.needs)}; update superfluid there",
        details={"nodes": old},
    )


def _no_node(placement: Placement) -> SuperfluidError:
    request, reasons = placement.case.request, placement.reasons
    why = "; ".join(f"{identity} {reason}" for identity, reason in reasons)
    lacks = f"does not serve {request.model}"
    idle = next((identity for identity, reason in reasons if reason == lacks), "")
    load = f"have one serve it: sfctl model load {request.model} {idle}, or " if idle else ""
    return NoNode(
        f"no node can serve {request.model} now ({why or 'no node has joined'}); {load}"
        "start a node that has the model, or wait for one (`sfctl node ls` shows them)",
        details={"nodes": dict(reasons)},
    )


_ERRORS = {ContextLengthExceeded: _too_long, UnsupportedOnFleet: _unsupported, NoNode: _no_node}


# --- claims -----------------------------------------------------------------------------------


def with_claim(
    snapshot: FleetSnapshot, node: NodeIdentity, qos: int = LOWEST_CLASS
) -> FleetSnapshot:
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
                of_class=tuple(n + (at == qos) for at, n in enumerate(model.of_class)),
                sessions_placed=model.sessions_placed + 1,
            ),
        )

    return replace(
        snapshot,
        nodes=tuple(claimed(view) for view in snapshot.nodes),
        placements_made=snapshot.placements_made + 1,
    )
