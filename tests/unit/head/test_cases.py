"""Cases from the field on the head's policies; each test has its case's number."""

from __future__ import annotations

from collections import Counter

from bus.ids import GenerationId, ModelName, NodeIdentity
from bus.messages.link import NodeConfirm
from bus.messages.parts import ModelStatus
from head.fleet import Fleet
from head.placement import place
from head.snapshot import PlacementRequest

TOY = ModelName("toy")


def node(name: str, link: int, lanes: int, decode_rate: float, fleet: Fleet, used: int = 0) -> None:
    status = ModelStatus(
        name=TOY,
        phase="ready",
        window_tokens=4096,
        lanes_total=lanes,
        lanes_used=used,
        kv_total_tokens=4096 * lanes,
        decode_rate=decode_rate,
        prefill_rate=10 * decode_rate,
        tokenizer_digest=5,
    )
    identity = NodeIdentity(name)
    confirm = NodeConfirm(identity=identity, incarnation=1, software="x", models=(status,))
    fleet.link_up(link, confirm, 10.0)


def burst(fleet: Fleet, size: int) -> list[str]:
    """Place requests one after the other within one instant, as the head does."""
    placed = []
    for number in range(size):
        request = PlacementRequest(
            model=TOY, prompt_tokens=100, expected_tokens=100, tokenizer_digest=5
        )
        found = place("load-aware", fleet.snapshot(TOY, 11.0), request).node
        placed.append(found or "waits")
        if found is not None:
            fleet.claim(found, TOY, GenerationId(number + 1), 11.0)
    return placed


def test_g7_a_burst_of_64_in_one_instant_is_spread_by_estimated_completion() -> None:
    # All statuses are from before the burst, so both nodes look idle all along.
    fleet = Fleet()
    node("fast", 1, 8, 80.0, fleet)
    node("slow", 2, 8, 20.0, fleet)
    # An answer takes 1,375 ms on the fast node and 5,500 ms on the slow one. What finds no lane
    # waits at the head for the first that is free, so the idle slow node is used too.
    assert burst(fleet, 64) == ["fast"] * 9 + ["slow"] * 9 + ["waits"] * 46


def test_g7_a_burst_of_64_goes_to_where_it_ends_first_even_behind_others() -> None:
    fleet = Fleet()
    node("fast", 1, 8, 80.0, fleet, used=6)
    node("slow", 2, 8, 20.0, fleet)
    # Two free lanes at 1,375 ms; then one has to end first, at 2,625, and behind others at 3,875.
    # The next at 5,125 is no better than an idle slow lane at 5,500, so the node with fewer
    # generations goes first, until both have four; then they take turns up to six, as 6,375 is no
    # worse than 5,500 by a quarter. The fast node's seventh, at 7,625, is, so the slow one gets
    # its eighth; that one's ninth, at 10,500, is worse than the fast one's at 7,625 and 8,875.
    # Last, both are as good and have eight each. Then both have all they may.
    turns = ["fast", "slow", "fast"]
    expected = ["fast"] * 4 + ["slow"] * 4 + turns + ["slow"] * 3 + ["fast"] * 3 + ["slow"]
    assert burst(fleet, 64) == expected + ["waits"] * 46


def test_g7_a_burst_of_64_on_equal_nodes_is_halved() -> None:
    fleet = Fleet()
    node("a", 1, 32, 20.0, fleet)
    node("b", 2, 32, 20.0, fleet)
    assert Counter(burst(fleet, 64)) == {"a": 32, "b": 32}
