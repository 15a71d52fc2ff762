"""The view of the fleet that placement decides on: plain data, no clocks, no links.

The head's core builds one for each decision, of views that it keeps until something changes;
simulator and tests build them by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from bus.ids import ModelName, NodeIdentity, NumericsId
from bus.qos import LOWEST_CLASS, MAY_PREEMPT

#: No tokens, or requests, on any node.
NOTHING: Mapping[NodeIdentity, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """One model on one node, as last reported, corrected by what the head placed since.

    Attributes:
        window_tokens: longest context; 0 is not known.
        lanes_free: lanes without a generation.
        queued: generations waiting at the node.
        unseen: generations placed by the head that no status has counted yet.
        in_flight: all generations of the head on it now.
        of_class: how many of them are of QoS class 0, 1, ...; empty: all count for every class.
        sessions_placed: sessions ever placed there by this head, for ties.
        kv_live_tokens, kv_total_tokens: live and possible KV tokens; total 0 is not known.
        decode_rate, prefill_rate: tokens/s of one lane while busy; 0 is not known.
        status_at_s: when the status came; -inf when none did.
        cautious_until_s: until then the node, which has come back, gets half its lanes.
        tokenizer_digest: 0 is not known.
    """

    window_tokens: int = 0
    lanes_free: int = 0
    lanes_total: int = 0
    queued: int = 0
    unseen: int = 0
    in_flight: int = 0
    of_class: tuple[int, ...] = ()
    sessions_placed: int = 0
    kv_live_tokens: int = 0
    kv_total_tokens: int = 0
    decode_rate: float = 0.0
    prefill_rate: float = 0.0
    status_at_s: float = float("-inf")
    cautious_until_s: float = float("-inf")
    tokenizer_digest: int = 0
    numerics: NumericsId = NumericsId("")

    def rivals(self, qos: int) -> int:
        """Generations that a request of a class can not take a lane from."""
        if qos > MAY_PREEMPT or not self.of_class:
            return self.in_flight
        return sum(self.of_class[: qos + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node. `serving` is None when it does not serve the model, with `why_not`.

    `capabilities` are what it can do beyond the wire version (bus/capabilities.py).
    """

    identity: NodeIdentity
    up: bool = True
    draining: bool = False
    capabilities: tuple[str, ...] = ()
    serving: ModelView | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What is to be placed. `expected_tokens` is max_new, or what remains of it.

    Attributes:
        qos: class, 0 to 3.
        needs: the capabilities that a node must have.
        cached: leading tokens of the prompt that nodes are believed to hold.
        passed_s: for how long it has left nodes alone that could have taken it, to wait for one
            that holds its prefix.
        lost_node: it ran already and its node failed: a node that came back gives it all its lanes.
    """

    model: ModelName
    prompt_tokens: int
    expected_tokens: int
    qos: int = LOWEST_CLASS
    tokenizer_digest: int = 0
    prefer_numerics: NumericsId = NumericsId("")
    excluded: frozenset[NodeIdentity] = frozenset()
    needs: tuple[str, ...] = ()
    cached: Mapping[NodeIdentity, int] = field(default_factory=lambda: NOTHING)
    passed_s: float = 0.0
    lost_node: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """All nodes at a moment.

    Attributes:
        placements_made: how many were made before (round-robin's turn).
        now_s: the moment.
        awaited: how many requests wait for a full node of all, since it holds their prefix.
        prefilling: tokens of prompts that nodes were given and have not computed yet.
    """

    nodes: tuple[NodeView, ...]
    placements_made: int = 0
    now_s: float = 0.0
    awaited: Mapping[NodeIdentity, int] = field(default_factory=lambda: NOTHING)
    prefilling: Mapping[NodeIdentity, int] = field(default_factory=lambda: NOTHING)
