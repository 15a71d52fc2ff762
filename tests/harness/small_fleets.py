"""Fleets small enough to place in by hand, and requests for them."""

from __future__ import annotations

from bus.ids import ModelName, NodeIdentity, NumericsId
from head.placement import Placement, place
from head.snapshot import FleetSnapshot, ModelView, NodeView, PlacementRequest

A, B, C = NodeIdentity("a"), NodeIdentity("b"), NodeIdentity("c")
NOW = 100.0
#: A node with four free lanes, a fresh status, 20 and 200 tokens/s.
IDLE = ModelView(
    window_tokens=4096,
    lanes_free=4,
    lanes_total=4,
    kv_total_tokens=10_000,
    decode_rate=20.0,
    prefill_rate=200.0,
    status_at_s=NOW - 1.0,
    tokenizer_digest=7,
)


def fleet(made: int = 0, **models: ModelView | None) -> FleetSnapshot:
    nodes = tuple(
        NodeView(identity=NodeIdentity(name), serving=model) for name, model in models.items()
    )
    return FleetSnapshot(nodes=nodes, placements_made=made, now_s=NOW)


def request(
    prompt: int = 100,
    expected: int = 40,
    numerics: str = "",
    excluded: frozenset[NodeIdentity] = frozenset(),
) -> PlacementRequest:
    return PlacementRequest(
        model=ModelName("m"),
        prompt_tokens=prompt,
        expected_tokens=expected,
        tokenizer_digest=7,
        prefer_numerics=NumericsId(numerics),
        excluded=excluded,
    )


def load_aware(snapshot: FleetSnapshot, asked: PlacementRequest | None = None) -> Placement:
    return place("load-aware", snapshot, asked or request())
