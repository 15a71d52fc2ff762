"""Which nodes can take a request: how far each comes on the way to being a candidate.

A *candidate* is up, not draining, serves the model, has all capabilities that the request needs and
the fleet's tokenizer, was not tried already, has a window that holds the prompt, and room for one
more generation. A decision asks every node, so `standing` gives a number; words for a person are
made of it by `objection` when somebody wants them.
"""

from __future__ import annotations

from enum import IntEnum

from head.snapshot import FleetSnapshot, ModelView, NodeView, PlacementRequest

#: A node gets its free lanes and this many more, so that the next one is there when a lane ends.
LANES_AHEAD = 1


class Standing(IntEnum):
    """How far a node comes; each step has all before it."""

    NOT_SERVING = 0
    LACKING = 1
    OTHER_TOKENIZER = 2
    TRIED = 3
    TOO_SHORT = 4
    FULL = 5
    OPEN = 6


def standing(node: NodeView, request: PlacementRequest, now: float) -> Standing:
    """How far a node comes for a request at a moment."""
    model = node.serving
    if model is None or not node.up or node.draining:
        return Standing.NOT_SERVING
    for name in request.needs:
        if name not in node.capabilities:
            return Standing.LACKING
    # A node that does not know its digest (0) only ever sees token ids, so it may serve.
    theirs, ours = model.tokenizer_digest, request.tokenizer_digest
    if theirs != ours and theirs and ours:
        return Standing.OTHER_TOKENIZER
    if request.excluded and node.identity in request.excluded:
        return Standing.TRIED
    if request.prompt_tokens > model.window_tokens > 0:
        return Standing.TOO_SHORT
    # Most nodes have room when they have a free lane.
    if model.in_flight < model.lanes_total and now >= model.cautious_until_s:
        return Standing.OPEN
    if model.rivals(request.qos) >= room(model, now, lost_node=request.lost_node):
        return Standing.FULL
    return Standing.OPEN


def room(model: ModelView, now: float, *, lost_node: bool = False) -> int:
    """How many generations a node may have at a moment, of those that are rivals of one more.

    One that has come back starts with half its lanes, so that a node that fails again at once fails
    few. A stream that lost its node has nowhere better to wait: it gets all of them.
    """
    lanes = model.lanes_total
    if now < model.cautious_until_s and not lost_node:
        return max(lanes // 2, min(lanes, 1))
    return lanes + LANES_AHEAD if lanes else 0


def has_lane(node: NodeView, qos: int) -> bool:
    """Whether a node could begin with a request of a class at once, or by a lower class's lane."""
    model = node.serving
    return model is not None and (
        model.in_flight < model.lanes_total or model.rivals(qos) < model.lanes_total
    )


def objection(node: NodeView, request: PlacementRequest, now: float) -> str:
    """Why a node is no candidate, in words; empty for one that is."""
    found, model = standing(node, request, now), node.serving
    if found is Standing.NOT_SERVING or model is None:
        return not_serving(node, request)
    match found:
        case Standing.LACKING:
            return lacking(node, request)
        case Standing.OTHER_TOKENIZER:
            return (
                f"its tokenizer for {request.model} differs from the fleet's; import the same "
                "model file there, unload it and load it again"
            )
        case Standing.TRIED:
            return "was tried for this request already"
        case Standing.TOO_SHORT:
            return (
                f"its window of {model.window_tokens} tokens does not hold the prompt's "
                f"{request.prompt_tokens}"
            )
        case Standing.FULL:
            return _full(model, request, now)
    return ""


def not_serving(node: NodeView, request: PlacementRequest) -> str:
    """Why a node does not serve the model at all now."""
    if not node.up:
        return f"is down ({node.why_not})" if node.why_not else "is down"
    if node.draining:
        return "is draining"
    return node.why_not or f"does not serve {request.model}"


def lacking(node: NodeView, request: PlacementRequest) -> str:
    """What a node's version does not know, that the request needs."""
    missing = [f"'{name}'" for name in request.needs if name not in node.capabilities]
    return f"its version does not know {', '.join(missing)}; update it" if missing else ""


def _full(model: ModelView, request: PlacementRequest, now: float) -> str:
    if not model.lanes_total:
        return "has no lanes"
    if model.rivals(request.qos) < room(model, now, lost_node=True):
        left_s = model.cautious_until_s - now
        return (
            f"has come back and gets half its {model.lanes_total} lanes for {left_s:.0f} s more; "
            f"{model.in_flight} generations are there"
        )
    return f"has no room: {model.in_flight} generations on {model.lanes_total} lanes"


def by_standing(
    snapshot: FleetSnapshot, request: PlacementRequest
) -> tuple[list[NodeView], list[NodeView], set[Standing]]:
    """The nodes that are open, those that are only full, and how far nodes came at all."""
    open_now: list[NodeView] = []
    full: list[NodeView] = []
    seen: set[Standing] = set()
    now, prompt, digest = snapshot.now_s, request.prompt_tokens, request.tokenizer_digest
    asks_nothing = not request.needs and not request.excluded
    for node in snapshot.nodes:
        model = node.serving
        # What `standing` would say of most nodes, without the call: half of its time.
        if (
            asks_nothing
            and model is not None
            and model.in_flight < model.lanes_total
            and now >= model.cautious_until_s
            and not prompt > model.window_tokens > 0
            and (model.tokenizer_digest == digest or not (model.tokenizer_digest and digest))
            and node.up
            and not node.draining
        ):
            open_now.append(node)
            continue
        found = standing(node, request, now)
        if found is Standing.OPEN:
            open_now.append(node)
        else:
            seen.add(found)
            if found is Standing.FULL:
                full.append(node)
    return open_now, full, seen
