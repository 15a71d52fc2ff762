"""Requests go where their prompt's beginning is, as far as that is worth it; through the core.

Nodes prefill 1,000 tokens/s and decode 100 tokens/s on two lanes; a prompt of 10 blocks takes
640 ms to compute, and an answer of 100 tokens 1,000 ms.
"""

from __future__ import annotations

from typing import Any

import pytest

from bus.ids import WorkerIncarnation
from bus.messages.link import Declined, Lost
from tests.harness.head_bench import TOY, run
from tests.harness.placing_bench import PlacingBench

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


def two_nodes(prefill: float = 1000.0) -> PlacingBench:
    made = PlacingBench()
    for link, name in ((1, "a"), (2, "b")):
        made.join(link, name, prefill=prefill)
    return made


def warm_and_full(prefill: float) -> PlacingBench:
    """Node a has computed the prompt once, and has two more requests with it on its two lanes."""
    made = two_nodes(prefill)
    assert made.request(*PROMPT) == "a"
    made.end(0)
    assert [made.request(*PROMPT) for _ in range(2)] == ["a"] * 2
    return made


@pytest.fixture
def bench() -> PlacingBench:
    return two_nodes()


def believed(bench: PlacingBench, *blocks: int) -> dict[str, int]:
    """What nodes are believed to hold of a prompt, by `explain`."""
    tokens = [block for block in blocks for _ in range(64)] + [99, 99]
    nodes = explain(bench, tokens=tokens)["nodes"]
    return {node["node"]: node["cached_tokens"] for node in nodes}


def explain(bench: PlacingBench, **asked: Any) -> dict[str, Any]:
    return bench.operation("explain", model=TOY, **asked)


def test_a_prompt_goes_where_its_beginning_was_computed(bench: PlacingBench) -> None:
    assert bench.request(*PROMPT) == "a"
    bench.end(0)
    # Without prompts in common the node with fewer sessions is taken.
    assert bench.request(50, 51) == "b"
    bench.end(1)
    assert bench.request(*PROMPT, 11) == "a"
    bench.end(2, cached=640)
    assert bench.request(50, 51, 52) == "b"
    assert bench.request(50, 51, 53) == "b"


def test_what_was_generated_counts_for_the_next_turn(bench: PlacingBench) -> None:
    bench.request(*PROMPT, tail=63)
    bench.end(0)
    # 640 + 63 tokens of prompt and one of the answer, which itself was not computed yet.
    assert believed(bench, *PROMPT)["a"] == 640
    request = bench.requests()[0][1]
    assert request.prompt_tokens == 703


def test_a_chat_that_sends_all_again_goes_where_it_was(bench: PlacingBench) -> None:
    bench.request(*PROMPT)
    bench.end(0)
    bench.request(30)
    bench.end(1)
    # The next prompt begins with the last one, its tail of two included.
    assert bench.request(*PROMPT, 1, 1, 1) == "a"


def test_a_busy_holder_is_left_when_computing_again_is_sooner(bench: PlacingBench) -> None:
    assert bench.request(*PROMPT) == "a"
    bench.end(0)
    assert [bench.request(*PROMPT), bench.request(*PROMPT)] == ["a", "a"]
    # Both lanes are taken, and one may take 1,000 ms to end; at b the prompt takes 640 ms.
    assert bench.request(*PROMPT) == "b"
    # Now b will hold it too, and has a free lane.
    assert bench.request(*PROMPT) == "b"


def test_a_prompt_that_is_being_computed_is_no_gain_yet(bench: PlacingBench) -> None:
    assert bench.request(*PROMPT) == "a"
    # There it would be through after the same 640 tokens, which are as long in coming elsewhere.
    assert bench.request(*PROMPT) == "b"
    bench.begin(0)
    assert bench.request(*PROMPT) == "a"


def test_a_long_prefix_is_waited_for_while_others_go_on() -> None:
    bench = warm_and_full(prefill=100.0)
    # 640 tokens take 6.4 s elsewhere, and a lane of a ends each 500 ms.
    assert bench.request(*PROMPT) == ""
    assert bench.core.runs.waiting.counts() == {TOY: 1}
    assert bench.request(70) == "b", "it waits by itself"
    bench.end(1)
    assert bench.where(4) == "a", "a place there is its own"


def test_the_wait_for_a_prefix_ends_and_the_queue_is_looked_at_again() -> None:
    bench = warm_and_full(prefill=200.0)
    # 640 tokens at 200 tokens/s: 3.2 s, and not a moment more, whatever a does.
    assert bench.request(*PROMPT) == ""
    bench.wait(3.19)
    assert len(bench.requests()) == 3
    bench.wait(0.02)
    assert bench.where(3) == "b", "not in the line of a, which was no sooner"


def test_of_several_that_hold_a_prefix_the_first_with_a_free_lane_gets_who_waits() -> None:
    bench = PlacingBench()
    for link, name in ((1, "a"), (2, "b"), (3, "c")):
        bench.join(link, name, prefill=100.0)
    # Two on each of a and b, which hold it then; c would compute 640 tokens for 6.4 s.
    assert bench.request(*PROMPT) == "a"
    assert bench.request(*PROMPT) == "b"
    bench.begin(0)
    bench.begin(1)
    assert sorted(bench.request(*PROMPT) for _ in range(2)) == ["a", "b"]
    assert bench.request(*PROMPT) == "", "in the line of neither"
    bench.end(1)
    assert bench.where(4) == "b"


def test_who_waits_for_a_node_gets_another_that_holds_the_prefix_and_is_free_before() -> None:
    bench = PlacingBench()
    for link, name in ((1, "a"), (2, "b")):
        bench.join(link, name)
    bench.join(3, "c", prefill=10.0, decode=10.0)
    assert sorted(bench.request(*PROMPT) for _ in range(2)) == ["a", "b"]
    bench.begin(0)
    bench.begin(1)
    assert sorted(bench.request(*PROMPT) for _ in range(2)) == ["a", "b"]
    assert bench.request(*PROMPT) == ""
    waits_for = explain(bench, tokens=[*[id for id in PROMPT for _ in range(64)], 1])["waits_for"]
    # Two others fill the lines of both, rather than to begin on c, which takes 16 s.
    assert sorted((bench.request(70), bench.request(71))) == ["a", "b"]
    other = "b" if waits_for == "a" else "a"
    there = [number for number in range(6) if bench.where(number) == other]
    bench.end(there[0])
    assert bench.where(6) == "", "the first of its lanes is for the one in line there"
    bench.end(there[1])
    assert bench.where(6) == other


def test_each_of_several_waits_for_a_prefix_ends_at_its_own_time() -> None:
    bench = warm_and_full(prefill=200.0)
    assert bench.request(*PROMPT) == ""
    bench.wait(1.0)
    assert bench.request(*PROMPT, 11, 12) == ""
    bench.wait(2.3)
    assert [bench.where(3), bench.where(4)] == ["b", ""]
    bench.wait(1.0)
    assert bench.where(4) == "b"


def test_no_more_wait_for_a_node_than_should_find_their_turn_in_time() -> None:
    bench = warm_and_full(prefill=400.0)
    # 640 tokens take 1.6 s at b. A lane of a may take 1,000 ms to end; who comes behind another may
    # have to wait for 2,000.
    assert bench.request(*PROMPT) == ""
    assert bench.request(*PROMPT) == "b"


def test_a_worker_that_keeps_nothing_draws_nobody(bench: PlacingBench) -> None:
    for number in range(12):
        bench.request(*PROMPT)
        bench.end(number, cached=0)
    nodes = [bench.where(number) for number in range(12)]
    # After nine that were not there, 0.75 ** 9 of 640 tokens is less than a block.
    assert nodes == ["a"] * 10 + ["b"] * 2


def test_a_worker_that_dies_takes_what_it_held_along(bench: PlacingBench) -> None:
    bench.request(*PROMPT)
    bench.end(0)
    assert believed(bench, *PROMPT) == {"a": 640, "b": 0}
    bench.request(*PROMPT)
    request = bench.requests()[1][1]
    bench.hear(
        1,
        Lost(
            session=request.session,
            epoch=request.epoch,
            generation=request.generation,
            reason="signal 9",
            worker=WorkerIncarnation(1),
        ),
    )
    assert believed(bench, *PROMPT)["a"] == 0


@pytest.mark.parametrize("finish", ["refused", "expired"])
def test_an_end_before_the_first_token_says_nothing_of_what_its_node_holds(
    finish: str, bench: PlacingBench
) -> None:
    bench.request(*PROMPT)
    bench.end(0)
    assert bench.request(*PROMPT) == "a"
    bench.hear(1, run(bench.requests()[1][1], 0, finish=finish))
    assert believed(bench, *PROMPT)["a"] == 640


def test_a_stream_that_a_drain_moves_is_counted_where_it_goes(bench: PlacingBench) -> None:
    assert bench.request(*PROMPT) == "a"
    bench.begin(0)
    bench.operation("node.drain", name="a")
    assert bench.where(1) == "b"
    bench.end(1)
    assert believed(bench, *PROMPT)["b"] == 640


def test_a_prompt_that_its_node_declined_is_not_to_be_computed_there() -> None:
    bench = PlacingBench()
    bench.join(1, "a")
    bench.request(*PROMPT)

    def estimate_ms() -> float:
        (node,) = explain(bench, prompt_tokens=100, max_new=100)["nodes"]
        return float(node["estimate_ms"])

    # 642 and 100 tokens of prompts, and an answer of 1,000 ms.
    assert estimate_ms() == 1742.0
    request = bench.requests()[0][1]
    bench.hear(
        1,
        Declined(
            session=request.session,
            epoch=request.epoch,
            command=request.command,
            generation=request.generation,
            code="queue_full",
            message="",
        ),
    )
    assert bench.core.runs.waiting.counts() == {TOY: 1}
    assert estimate_ms() == 1100.0


def test_a_new_worker_or_a_model_that_is_unloaded_holds_nothing(bench: PlacingBench) -> None:
    bench.request(*PROMPT)
    bench.end(0)
    bench.status(1)
    assert believed(bench, *PROMPT)["a"] == 640
    bench.status(1, worker=2)
    assert believed(bench, *PROMPT)["a"] == 0


def test_a_link_that_comes_back_finds_its_worker_with_what_it_held(bench: PlacingBench) -> None:
    bench.request(*PROMPT)
    bench.end(0)
    bench.down(1)
    bench.wait(1.0)
    bench.join(3, "a")
    assert believed(bench, *PROMPT)["a"] == 640


def test_g5_a_prompt_that_is_too_long_is_refused_at_once_however_many_wait() -> None:
    bench = PlacingBench()
    bench.join(1, "a", window=640)
    for _ in range(6):
        bench.request(1)
    bench.request(*PROMPT)
    error = bench.replies[-1]["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["details"] == {"length": 642, "max": 640}
    assert bench.core.runs.waiting.counts() == {TOY: 3}


def test_nothing_is_kept_of_answers_that_are_over(bench: PlacingBench) -> None:
    for _ in range(7):
        bench.request(*PROMPT)
    for number in range(3):
        bench.end(number)
    for number in range(4, 8):
        bench.operation("cancel", about=b"q%d" % number)
    bench.wait(1.0)
    affinity = bench.core.runs.waiting._affinity
    assert (affinity._chains, affinity._running, affinity._preferences) == ({}, {}, {})
    affinity.beliefs.check_integrity()


@pytest.mark.parametrize("policy", ["least-loaded", "round-robin"])
def test_other_policies_neither_hash_nor_wait(policy: str) -> None:
    bench = PlacingBench(policy)
    for link, name in ((1, "a"), (2, "b")):
        bench.join(link, name)
    for number, node in enumerate(("a", "b", "a", "b")):
        assert bench.request(*PROMPT) == node
        bench.end(number)
    assert len(bench.core.runs.waiting._affinity.beliefs) == 0
