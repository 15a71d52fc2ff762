"""Placement on fleets small enough to compute by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ContextLengthExceeded, Invalid, NoNode, UnsupportedOnFleet
from bus.ids import ModelName, NodeIdentity, NumericsId
from head.candidates import Standing, by_standing, standing
from head.placement import POLICIES, Placement, place, with_claim
from head.policies import DEFAULT_OPTIONS, Case, Rates, estimate_ms
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


# --- the estimate -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "cached", "expected_ms"),
    [
        # 100 / 200 s of prefill and 40 / 20 s of answer.
        (IDLE, 0, 2500.0),
        # Two of three waiting find no lane: 2 * 2000 ms more, and the first of four lanes has to
        # end: 2000 / 4 ms.
        (replace(IDLE, queued=2, unseen=1, lanes_free=1), 0, 7000.0),
        # What waits takes all lanes that are free: one of the four has to end.
        (replace(IDLE, queued=1, unseen=3, lanes_free=4), 0, 3000.0),
        # Free lanes beyond what waits do not make it faster.
        (replace(IDLE, queued=1, lanes_free=4), 0, 2500.0),
        # 80 of the prompt's tokens are cached: 20 / 200 s.
        (IDLE, 80, 2100.0),
        # More cached than the prompt has: no prefill, nothing negative.
        (IDLE, 300, 2000.0),
        # An old status: its queue of 9 is not counted, the head's own two are.
        (replace(IDLE, queued=9, in_flight=2, status_at_s=NOW - 10.1), 0, 6500.0),
        (replace(IDLE, queued=5, in_flight=2, status_at_s=NOW - 10.0), 0, 5000.0),
        # No rates: the 40 and 400 of the others. 250 + 1000 ms.
        (replace(IDLE, decode_rate=0.0, prefill_rate=0.0), 0, 1250.0),
    ],
)
def test_estimated_completion(model: ModelView, cached: int, expected_ms: float) -> None:
    others = Rates(decode=40.0, prefill=400.0)
    asked = replace(request(), cached={A: cached})
    snapshot = fleet(a=model)
    case = Case(snapshot, asked, DEFAULT_OPTIONS, others)
    assert estimate_ms(snapshot.nodes[0], case) == pytest.approx(expected_ms)


def test_prompts_that_a_node_has_to_compute_first_count() -> None:
    # 300 and 100 tokens at 200 a second, then 2,000 ms of answer.
    snapshot = replace(fleet(a=IDLE, b=IDLE), prefilling={A: 300})
    case = Case(snapshot, request(), DEFAULT_OPTIONS, Rates(20.0, 200.0))
    assert [estimate_ms(node, case) for node in snapshot.nodes] == [4000.0, 2500.0]
    # 50 more are within a quarter: then the node that has less to compute first is as good.
    close = replace(snapshot, prefilling={A: 50, B: 40})
    assert load_aware(close).node == B


def test_within_a_quarter_the_node_with_more_free_lanes_is_as_good_and_goes_first() -> None:
    # 2,500 ms at a; 80 / 100 of its rates make 3,125 ms at b, 79 / 100 more.
    busy = replace(IDLE, in_flight=1)
    slow = replace(IDLE, decode_rate=16.0, prefill_rate=160.0)
    placed = load_aware(fleet(a=busy, b=slow))
    assert placed.node == B
    assert dict(placed.reasons) == {A: "as good as b, but has 1 generations on 4 lanes"}
    slower = replace(IDLE, decode_rate=15.8, prefill_rate=158.0)
    placed = load_aware(fleet(a=busy, b=slower))
    assert placed.node == A
    assert dict(placed.reasons) == {B: "would end after 3165 ms, a after 2500 ms"}
    # One that holds less of the prompt is not as good.
    asked = replace(request(), cached={A: 64})
    placed = load_aware(fleet(a=busy, b=IDLE), asked)
    assert placed.node == A
    assert dict(placed.reasons) == {B: "would end after 2500 ms, a after 2180 ms"}
    placed = load_aware(fleet(a=IDLE, b=busy), asked)
    assert dict(placed.reasons) == {B: "holds 64 tokens of the prompt less than a"}


def test_missing_rates_are_the_mean_of_those_that_reported() -> None:
    # Mean decode (10 + 30) / 2 = 20, mean prefill (100 + 300) / 2 = 200. a: 1000 + 4000 ms,
    # b: 333 + 1333 ms, c by the means: 500 + 2000 ms.
    snapshot = fleet(
        a=replace(IDLE, decode_rate=10.0, prefill_rate=100.0),
        b=replace(IDLE, decode_rate=30.0, prefill_rate=300.0),
        c=replace(IDLE, decode_rate=0.0, prefill_rate=0.0),
    )
    placed = load_aware(snapshot)
    assert placed.node == B
    assert dict(placed.reasons) == {
        A: "would end after 5000 ms, b after 1667 ms",
        C: "would end after 2500 ms, b after 1667 ms",
    }


def test_without_any_rate_20_and_200_tokens_a_second_are_taken() -> None:
    silent = replace(IDLE, decode_rate=0.0, prefill_rate=0.0)
    placed = load_aware(fleet(a=replace(silent, queued=5), b=replace(silent, queued=6)))
    # a: one ahead, 2 * 2000 + 500 ms, and 2000 / 4 for the first lane; b: two ahead.
    assert placed.node == A
    assert dict(placed.reasons) == {B: "would end after 7000 ms, a after 5000 ms"}


def test_ties_go_to_fewer_sessions_placed_then_to_the_first_name() -> None:
    placed = load_aware(fleet(a=replace(IDLE, sessions_placed=3), b=IDLE, c=IDLE))
    assert placed.node == B
    assert dict(placed.reasons) == {
        A: "as good as b, but more sessions were placed there",
        C: "as good as b, which comes first by name",
    }


def test_a_cached_prefix_draws_until_its_node_is_behind() -> None:
    asked = replace(request(), cached={B: 100})
    assert load_aware(fleet(a=IDLE, b=IDLE), asked).node == B
    # 500 ms of prefill are saved: as much as the first of four lanes takes to end.
    assert load_aware(fleet(a=IDLE, b=replace(IDLE, lanes_free=0)), asked).node == A
    assert load_aware(fleet(a=IDLE, b=replace(IDLE, queued=5)), asked).node == A


def test_a_moved_stream_prefers_equal_numerics() -> None:
    same = replace(IDLE, numerics=NumericsId("n1"), queued=5)
    other = replace(IDLE, numerics=NumericsId("n2"))
    placed = load_aware(fleet(a=other, b=same), request(numerics="n1"))
    assert placed.node == B
    assert dict(placed.reasons) == {A: "would not continue bit by bit as b does"}
    assert load_aware(fleet(a=other, b=same)).node == A
    assert load_aware(fleet(a=other), request(numerics="n1")).node == A


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
