"""Placement on fleets small enough to compute by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ContextLengthExceeded, Invalid, NoNode, UnsupportedOnFleet
from bus.ids import ModelName, NodeIdentity
from head.candidates import Standing, by_standing, standing
from head.placement import POLICIES, place, with_claim
from head.snapshot import FleetSnapshot, ModelView, NodeView, PlacementRequest
from tests.harness.small_fleets import IDLE, NOW, A, B, C, fleet, load_aware, request

# --- candidates -------------------------------------------------------------------------------


def test_every_node_that_can_not_serve_says_why() -> None:
    snapshot = FleetSnapshot(
        nodes=(
            NodeView(identity=NodeIdentity("down"), up=False, serving=IDLE),
            NodeView(identity=NodeIdentity("gone"), up=False, why_not="no heartbeat for 15 s"),
            NodeView(identity=NodeIdentity("draining"), draining=True, serving=IDLE),
            NodeView(identity=NodeIdentity("empty")),
            NodeView(identity=NodeIdentity("loading"), why_not="is loading m"),
            NodeView(identity=NodeIdentity("other"), serving=replace(IDLE, tokenizer_digest=8)),
            NodeView(identity=NodeIdentity("tried"), serving=IDLE),
        )
    )
    asked = request(excluded=frozenset({NodeIdentity("tried")}))
    expected = {
        "down": "is down",
        "gone": "is down (no heartbeat for 15 s)",
        "draining": "is draining",
        "empty": "does not serve m",
        "loading": "is loading m",
        "other": "its tokenizer for m differs from the fleet's; import the same model file there, "
        "unload it and load it again",
        "tried": "was tried for this request already",
    }
    for policy in POLICIES:
        placed = place(policy, snapshot, asked)
        assert placed.node is None
        assert dict(placed.reasons) == expected
        assert isinstance(placed.error, NoNode)
        assert placed.error.details == {"nodes": expected}
        assert "loading is loading m" in placed.error.message


@pytest.mark.parametrize("policy", POLICIES)
def test_nodes_of_an_older_version_are_passed_over_and_named(policy: str) -> None:
    old = NodeView(identity=A, serving=IDLE, capabilities=("probe",))
    new = NodeView(identity=B, serving=IDLE, capabilities=("probe", "blobs"))
    asked = replace(request(), needs=("blobs",))
    both = place(policy, FleetSnapshot(nodes=(old, new)), asked)
    assert both.node == B
    assert both.reasons == ((A, "its version does not know 'blobs'; update it"),)
    alone = place(policy, FleetSnapshot(nodes=(old, replace(new, up=False))), asked)
    assert isinstance(alone.error, UnsupportedOnFleet)
    assert alone.error.details == {"nodes": {A: "its version does not know 'blobs'; update it"}}
    # One that does not even serve the model is no reason to update anything.
    other = replace(old, serving=None)
    assert isinstance(place(policy, FleetSnapshot(nodes=(other,)), asked).error, NoNode)
    # A new node that is full is waited for.
    full = replace(new, serving=replace(IDLE, in_flight=5))
    assert place(policy, FleetSnapshot(nodes=(old, full)), asked).error is None
    assert place(policy, FleetSnapshot(nodes=(old,)), request()).node == A


def test_an_empty_fleet_is_no_node() -> None:
    placed = load_aware(FleetSnapshot(nodes=()))
    assert isinstance(placed.error, NoNode)
    assert "no node has joined" in placed.error.message


def test_an_unknown_digest_on_either_side_does_not_exclude() -> None:
    unknown = replace(IDLE, tokenizer_digest=0)
    assert load_aware(fleet(a=unknown)).node == A
    other = replace(IDLE, tokenizer_digest=8)
    assert load_aware(fleet(a=other), replace(request(), tokenizer_digest=0)).node == A


@pytest.mark.parametrize("policy", POLICIES)
def test_windows(policy: str) -> None:
    short, long = replace(IDLE, window_tokens=512), replace(IDLE, window_tokens=1024)
    assert place(policy, fleet(a=short, b=long), request(prompt=1024)).node == B
    placed = place(policy, fleet(a=short, b=long), request(prompt=1025))
    assert placed.node is None
    assert isinstance(placed.error, ContextLengthExceeded)
    assert placed.error.details == {"length": 1025, "max": 1024}
    assert dict(placed.reasons) == {
        A: "its window of 512 tokens does not hold the prompt's 1025",
        B: "its window of 1024 tokens does not hold the prompt's 1025",
    }
    unknown = replace(IDLE, window_tokens=0)
    assert place(policy, fleet(a=short, b=unknown), request(prompt=5000)).node == B


@pytest.mark.parametrize("policy", POLICIES)
def test_g6_no_answer_is_cut_while_a_node_holds_it_whole(policy: str) -> None:
    short = replace(IDLE, window_tokens=512)
    long = replace(IDLE, window_tokens=1024, in_flight=1, decode_rate=1.0)
    asked = replace(request(prompt=400), expected_tokens=200)
    placed = place(policy, fleet(a=short, b=long), asked)
    assert placed.node == B
    assert dict(placed.reasons) == {
        A: "would cut the answer at its window of 512 tokens; 400 and up to 200 are wanted"
    }
    # A full one is not waited for, and where none holds it any may have it.
    assert place(policy, fleet(a=short, b=replace(long, in_flight=20)), asked).node == A
    longer = replace(asked, expected_tokens=5000)
    assert place("load-aware", fleet(a=short, b=long), longer).node == A


def test_a_stream_whose_only_long_node_failed_is_not_called_too_long() -> None:
    snapshot = fleet(a=replace(IDLE, window_tokens=512), b=IDLE)
    placed = load_aware(snapshot, request(prompt=1000, excluded=frozenset({B})))
    assert isinstance(placed.error, NoNode)
    assert set(dict(placed.reasons)) == {A, B}


@pytest.mark.parametrize("policy", POLICIES)
def test_work_waits_at_the_head_when_every_node_has_its_lanes_and_one_more(policy: str) -> None:
    room, full = replace(IDLE, in_flight=4), replace(IDLE, in_flight=5)
    assert place(policy, fleet(a=full, b=room), request()).node == B
    placed = place(policy, fleet(a=full, b=full), request())
    assert placed.node is None
    assert placed.error is None
    assert dict(placed.reasons) == dict.fromkeys((A, B), "has no room: 5 generations on 4 lanes")


def test_a_full_node_does_not_hide_that_the_prompt_is_too_long() -> None:
    full = replace(IDLE, in_flight=5)
    assert isinstance(load_aware(fleet(a=full), request(5000)).error, ContextLengthExceeded)


def test_nearly_full_kv_is_left_alone_unless_all_are() -> None:
    slow = replace(IDLE, decode_rate=1.0)
    high = replace(IDLE, kv_live_tokens=9000)
    placed = load_aware(fleet(a=high, b=slow))
    assert placed.node == B
    assert dict(placed.reasons) == {A: "its KV cache is 90% in use"}
    assert load_aware(fleet(a=replace(high, kv_live_tokens=8999), b=slow)).node == A
    assert load_aware(fleet(a=replace(high, status_at_s=NOW - 10.0), b=slow)).node == A
    assert load_aware(fleet(a=replace(high, kv_total_tokens=0), b=slow)).node == A
    assert load_aware(fleet(a=high, b=replace(high, decode_rate=1.0))).node == A


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(Invalid, match="load-aware, least-loaded, round-robin"):
        place("fastest", fleet(a=IDLE), request())


# --- the other policies -----------------------------------------------------------------------


def test_least_loaded_counts_generations_in_flight() -> None:
    busy = replace(IDLE, in_flight=2, decode_rate=1000.0)
    calm = replace(IDLE, in_flight=1, sessions_placed=9, decode_rate=1.0)
    placed = place("least-loaded", fleet(a=busy, b=calm), request())
    assert placed.node == B
    assert dict(placed.reasons) == {A: "has 2 generations in flight, b 1"}
    even = place("least-loaded", fleet(a=replace(busy, in_flight=1), b=calm), request())
    assert even.node == A


def test_round_robin_takes_turns_and_passes_over_those_that_can_not() -> None:
    snapshot = fleet(a=IDLE, b=None, c=IDLE)
    taken = [
        place("round-robin", replace(snapshot, placements_made=n), request()).node for n in range(6)
    ]
    assert taken == [A, C, C, A, C, C]
    placed = place("round-robin", snapshot, request())
    assert dict(placed.reasons) == {B: "does not serve m", C: "its turn is after a's"}


# --- bursts -----------------------------------------------------------------------------------


def burst(snapshot: FleetSnapshot, size: int) -> dict[NodeIdentity | None, int]:
    counts: dict[NodeIdentity | None, int] = {}
    for _ in range(size):
        node = load_aware(snapshot).node
        counts[node] = counts.get(node, 0) + 1
        if node is not None:
            snapshot = with_claim(snapshot, node)
    return counts


def test_a_burst_is_spread_and_the_rest_waits() -> None:
    fast = replace(IDLE, decode_rate=60.0, prefill_rate=600.0)
    # Each takes its four lanes and one more; the fast one first, then the slow one.
    assert burst(fleet(fast=fast, slow=IDLE), 64) == {
        NodeIdentity("fast"): 5,
        NodeIdentity("slow"): 5,
        None: 54,
    }
    # 833 ms on the fast node, 2500 ms on the slow one: it is used up to its room first.
    assert burst(fleet(fast=fast, slow=IDLE), 6) == {
        NodeIdentity("fast"): 5,
        NodeIdentity("slow"): 1,
    }


@given(
    st.lists(
        st.builds(
            ModelView,
            window_tokens=st.sampled_from([0, 50, 100, 4096]),
            lanes_free=st.integers(0, 4),
            lanes_total=st.just(4),
            queued=st.integers(0, 9),
            unseen=st.integers(0, 9),
            in_flight=st.integers(0, 6),
            sessions_placed=st.integers(0, 3),
            kv_live_tokens=st.integers(0, 100),
            kv_total_tokens=st.sampled_from([0, 100]),
            decode_rate=st.sampled_from([0.0, 5.0, 50.0]),
            prefill_rate=st.sampled_from([0.0, 500.0]),
            status_at_s=st.sampled_from([NOW - 1.0, NOW - 20.0, float("-inf")]),
            cautious_until_s=st.sampled_from([float("-inf"), NOW + 1.0]),
            tokenizer_digest=st.sampled_from([0, 7, 8]),
        ),
        max_size=5,
    ),
    st.sampled_from(sorted(POLICIES)),
    st.integers(0, 10),
)
def test_a_node_is_chosen_or_every_node_has_its_reason(
    models: list[ModelView], policy: str, made: int
) -> None:
    snapshot = fleet(made, **{f"n{i}": model for i, model in enumerate(models)})
    placed = place(policy, snapshot, request())
    identities = {node.identity for node in snapshot.nodes}
    explained = dict(placed.reasons)
    assert set(explained) == identities - {placed.node}
    assert all(explained.values())
    if placed.node is not None:
        assert placed.error is None
        chosen = next(n.serving for n in snapshot.nodes if n.identity == placed.node)
        assert chosen is not None
        assert chosen.in_flight < (5 if chosen.cautious_until_s < NOW else 2)
        assert chosen.window_tokens in (0, 100, 4096)
        assert chosen.tokenizer_digest in (0, 7)


FULL_OF_BACKGROUND = replace(IDLE, lanes_total=2, lanes_free=0, in_flight=3, of_class=(0, 0, 0, 3))


@pytest.mark.parametrize(("qos", "finds_room"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_node_full_of_background_work_takes_those_that_may_preempt(
    qos: int, finds_room: bool
) -> None:
    placed = load_aware(fleet(a=FULL_OF_BACKGROUND), replace(request(), qos=qos))
    assert (placed.node is not None) is finds_room


def test_a_node_takes_as_many_of_a_class_as_it_has_lanes_and_one() -> None:
    interactive = replace(request(), qos=0)
    nearly = replace(FULL_OF_BACKGROUND, in_flight=5, of_class=(2, 0, 0, 3))
    assert load_aware(fleet(a=nearly), interactive).node == "a"
    full = with_claim(fleet(a=nearly), NodeIdentity("a"), qos=0)
    assert load_aware(full, interactive).node is None
    assert load_aware(full, replace(interactive, qos=1)).node is None


# --- candidates -------------------------------------------------------------------------------

_MODELS = st.builds(
    ModelView,
    window_tokens=st.sampled_from([0, 99, 100, 4096]),
    lanes_total=st.integers(0, 2),
    in_flight=st.integers(0, 4),
    of_class=st.sampled_from([(), (1, 0, 0, 0), (0, 0, 2, 2)]),
    cautious_until_s=st.sampled_from([NOW - 1.0, NOW, NOW + 1.0]),
    tokenizer_digest=st.sampled_from([0, 7, 8]),
)
_NODES = st.builds(
    NodeView,
    identity=st.sampled_from([A, B, C]),
    up=st.booleans(),
    draining=st.booleans(),
    capabilities=st.sampled_from([(), ("blobs",)]),
    serving=st.none() | _MODELS,
)
_REQUESTS = st.builds(
    PlacementRequest,
    model=st.just(ModelName("m")),
    prompt_tokens=st.just(100),
    expected_tokens=st.just(1),
    qos=st.integers(0, 3),
    tokenizer_digest=st.sampled_from([0, 7]),
    excluded=st.sampled_from([frozenset[NodeIdentity](), frozenset({A})]),
    needs=st.sampled_from([(), ("blobs",)]),
    lost_node=st.booleans(),
)


@given(st.lists(_NODES, max_size=8), _REQUESTS)
def test_nodes_are_sorted_by_how_far_each_comes(
    nodes: list[NodeView], asked: PlacementRequest
) -> None:
    far = [standing(node, asked, NOW) for node in nodes]
    at = dict(zip(map(id, nodes), far, strict=True))
    open_now, full, seen = by_standing(FleetSnapshot(nodes=tuple(nodes), now_s=NOW), asked)
    assert [id(node) for node in open_now] == [n for n in at if at[n] is Standing.OPEN]
    assert [id(node) for node in full] == [n for n in at if at[n] is Standing.FULL]
    assert seen == set(far) - {Standing.OPEN}
