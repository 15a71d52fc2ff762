"""What load-aware placement estimates, computed by hand, and how it orders nodes by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.ids import NumericsId
from head.policies import DEFAULT_OPTIONS, Case, Rates, estimate_ms
from head.snapshot import ModelView
from tests.harness.small_fleets import IDLE, NOW, A, B, C, fleet, load_aware, request


@pytest.mark.parametrize(
    ("model", "cached", "expected_ms"),
    [
        # 100 / 200 s of prefill and 40 / 20 s of answer.
        (IDLE, 0, 2500.0),
        # Two of three waiting find no lane: 2 * 2000 ms more, and a lane has to end for this one,
        # which may take another 2000 ms.
        (replace(IDLE, queued=2, unseen=1, lanes_free=1), 0, 8500.0),
        # What waits takes all lanes that are free: one has to end.
        (replace(IDLE, queued=1, unseen=3, lanes_free=4), 0, 4500.0),
        # Free lanes beyond what waits do not make it faster.
        (replace(IDLE, queued=1, lanes_free=4), 0, 2500.0),
        # 80 of the prompt's tokens are cached: 20 / 200 s.
        (IDLE, 80, 2100.0),
        # More cached than the prompt has: no prefill, nothing negative.
        (IDLE, 300, 2000.0),
        # An old status: its queue of 9 is not counted, the head's own two are.
        (replace(IDLE, queued=9, in_flight=2, status_at_s=NOW - 10.1), 0, 6500.0),
        (replace(IDLE, queued=5, in_flight=2, status_at_s=NOW - 10.0), 0, 6500.0),
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


def test_those_that_wait_at_the_head_for_a_node_go_first() -> None:
    # Without a free lane: two who wait for it, a lane that ends, and the request's own 2,500 ms.
    taken = replace(IDLE, lanes_free=0, in_flight=4)
    snapshot = replace(fleet(a=taken, b=taken, c=IDLE), awaited={A: 2, C: 2})
    case = Case(snapshot, request(), DEFAULT_OPTIONS, Rates(20.0, 200.0))
    # Two of four free lanes are left to c.
    assert [estimate_ms(node, case) for node in snapshot.nodes] == [8500.0, 4500.0, 2500.0]


def test_a_slower_node_that_could_begin_goes_before_the_line_of_a_faster_one() -> None:
    # Three times as fast: 833 ms, and as long as 667 more until a lane ends.
    fast = replace(IDLE, decode_rate=60.0, prefill_rate=600.0, lanes_free=0, in_flight=4)
    assert load_aware(fleet(a=IDLE, b=fast)).node == B
    # Twice as fast: 1,250 ms, and 1,000 more. A lane ends in 250 ms on average, but 2,250 ms are as
    # good as the 2,500 of a node that begins at once.
    twice = replace(fast, decode_rate=40.0, prefill_rate=400.0)
    placed = load_aware(fleet(a=IDLE, b=twice))
    assert placed.node == A
    assert dict(placed.reasons) == {B: "as good as a, but has 4 generations on 4 lanes"}
    # A quarter faster: 2,000 ms, and 1,600 more.
    little = replace(fast, decode_rate=25.0, prefill_rate=250.0)
    placed = load_aware(fleet(a=IDLE, b=little))
    assert placed.node == A
    assert dict(placed.reasons) == {B: "would end after 3600 ms, a after 2500 ms"}


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
    # a: one ahead and a lane to end, 3 * 2000 + 500 ms; b: two ahead.
    assert placed.node == A
    assert dict(placed.reasons) == {B: "would end after 8500 ms, a after 6500 ms"}


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
    # 500 ms of prefill are saved, less than the 2,000 that a lane may take to end.
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
