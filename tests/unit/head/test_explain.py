"""`explain`: every node with its reason, the queue, and nothing changed by asking."""

from __future__ import annotations

from typing import Any

import pytest

from bus.ids import NodeIdentity
from bus.messages.api import MARK, encode_body
from head.cli.explain import verdict
from tests.harness.head_bench import CLIENT, TOY
from tests.harness.placing_bench import PlacingBench


@pytest.fixture
def bench() -> PlacingBench:
    made = PlacingBench()
    made.join(1, "fast", prefill=2000.0, decode=400.0, window=200)
    made.join(2, "slow")
    return made


def reasons(found: dict[str, Any]) -> dict[str, str]:
    return {node["node"]: node["reason"] for node in found["nodes"]}


def test_it_names_every_node_with_its_estimate_and_reason(bench: PlacingBench) -> None:
    bench.join(3, "away")
    bench.down(3)
    found = bench.operation("explain", model=TOY, prompt_tokens=100, max_new=100)
    assert (found["node"], found["policy"], found["error"]) == ("fast", "load-aware", None)
    # 100 / 2,000 + 100 / 400 s, and 100 / 1,000 + 100 / 100 s.
    assert [(n["node"], n["chosen"], n["estimate_ms"]) for n in found["nodes"]] == [
        ("fast", True, 300.0),
        ("away", False, None),
        ("slow", False, 1100.0),
    ]
    assert reasons(found) == {
        "fast": "",
        "away": "is down (cut)",
        "slow": "would end after 1100 ms, fast after 300 ms",
    }


def test_it_tells_of_windows_and_of_what_would_be_refused(bench: PlacingBench) -> None:
    found = bench.operation("explain", model=TOY, prompt_tokens=201)
    assert found["node"] == "slow"
    assert reasons(found)["fast"] == "its window of 200 tokens does not hold the prompt's 201"
    found = bench.operation("explain", model=TOY, prompt_tokens=100, max_new=101)
    assert found["node"] == "slow"
    assert reasons(found)["fast"] == (
        "would cut the answer at its window of 200 tokens; 100 and up to 101 are wanted"
    )
    found = bench.operation("explain", model=TOY, prompt_tokens=70_000)
    assert found["node"] is None
    assert found["error"]["code"] == "context_length_exceeded"
    assert "70000" in found["error"]["message"]
    assert "65536" in found["error"]["message"]


def test_asking_changes_nothing(bench: PlacingBench) -> None:
    first = bench.operation("explain", model=TOY)
    assert bench.operation("explain", model=TOY) == first
    node = bench.core.fleet.get(NodeIdentity("fast"))
    assert node is not None
    assert (node.sessions_placed, dict(node.claims)) == (0, {})


def test_the_queue_is_told_by_class_and_place() -> None:
    bench = PlacingBench()
    bench.join(1, "a")
    for _ in range(3):
        assert bench.request(1) == "a"
    bench.request(1, qos="background")
    bench.wait(1.0)
    bench.request(1)
    bench.wait(2.0)
    found = bench.operation("explain", model=TOY, qos="agent")
    assert found["node"] is None
    assert found["error"] is None
    assert reasons(found) == {"a": "has no room: 3 generations on 2 lanes"}
    assert found["queue"] == {
        "waiting": 2,
        "qos": "agent",
        "position": 1,
        "classes": [
            {"qos": "interactive", "waiting": 1, "owners": 1, "oldest_s": 2.0},
            {"qos": "completion", "waiting": 0, "owners": 0, "oldest_s": 0.0},
            {"qos": "agent", "waiting": 0, "owners": 0, "oldest_s": 0.0},
            {"qos": "background", "waiting": 1, "owners": 1, "oldest_s": 3.0},
        ],
    }
    assert verdict(found) == [
        "256 tokens of prompt and 256 of answer would wait: every node that could take it is full",
        "2 wait for toy: 1 interactive (the oldest for 2 s), 1 background (the oldest for 3 s)",
        "1 of them would go before a new agent request",
    ]


def test_a_session_is_explained_by_its_context_and_the_node_that_holds_it() -> None:
    bench = PlacingBench()
    for link, name in ((1, "a"), (2, "b")):
        bench.join(link, name)
    session = bench.operation("session.create", model=TOY, qos="agent")["session"]
    bench.operation("session.append", session=session, tokens=[65] * 100)
    found = bench.operation("explain", session=session)
    assert (found["model"], found["prompt_tokens"], found["node"]) == (TOY, 100, "a")
    assert found["queue"]["qos"] == "agent"
    with pytest.raises(ValueError, match="the session's model is toy"):
        bench.operation("explain", session=session, model="other")
    with pytest.raises(ValueError, match="there is no session"):
        bench.operation("explain", session="s-none")


@pytest.mark.parametrize("policy", ["least-loaded", "round-robin"])
def test_a_session_is_told_to_stay_where_a_turn_of_it_would(policy: str) -> None:
    bench = PlacingBench(policy)
    bench.join(1, "a", lanes=2)
    bench.join(2, "b", lanes=4)
    bench.join(3, "c", lanes=4)
    session = bench.operation("session.create", model=TOY)["session"]
    bench.operation("session.append", session=session, tokens=[65] * 100)

    def turn(number: int) -> str:
        asked = {"op": "session.generate", "id": b"t%d" % number, "session": session}
        bench.core.client_request(CLIENT, [MARK, encode_body(asked)], bench.now)
        bench.settle()
        return bench.where(number)

    assert turn(0) == "a"
    bench.end(0)
    assert sorted(bench.request(number) for number in (1, 2, 3)) == ["a", "b", "c"]
    # A new request would go to another node.
    assert bench.operation("explain", model=TOY)["node"] != "a"
    found = bench.operation("explain", session=session)
    assert found["node"] == "a"
    stays = "the session stays on a, which holds it and has a free lane"
    assert reasons(found) == {"a": "", "b": stays, "c": stays}
    assert turn(4) == "a"
    bench.end(4)
    # Now all lanes of the node that holds it are taken.
    assert sorted(bench.request(number) for number in (1, 2, 3)) == ["a", "b", "c"]
    found = bench.operation("explain", session=session)
    assert found["node"] in ("b", "c")
    assert turn(8) == found["node"]


def test_what_the_request_can_not_be_is_said(bench: PlacingBench) -> None:
    with pytest.raises(ValueError, match="name a model or a session"):
        bench.operation("explain")
    with pytest.raises(ValueError, match="give one of prompt_tokens, tokens and session"):
        bench.operation("explain", model=TOY, prompt_tokens=3, tokens=[1])
    with pytest.raises(ValueError, match="there is no model"):
        bench.operation("explain", model="nothing")


def test_a_wait_for_a_prefix_is_told_with_its_node() -> None:
    bench = PlacingBench()
    for link, name in ((1, "a"), (2, "b")):
        bench.join(link, name, prefill=100.0)
    prompt = tuple(range(1, 11))
    assert bench.request(*prompt) == "a"
    bench.end(0)
    for _ in range(2):
        assert bench.request(*prompt) == "a"
    tokens = [block for block in prompt for _ in range(64)] + [1, 1]
    found = bench.operation("explain", model=TOY, tokens=tokens, max_new=100)
    assert (found["node"], found["waits_for"], found["wait_s"]) == (None, "a", 6.4)
    assert reasons(found)["a"] == "has no free lane: 2 generations on 2 lanes"
    assert reasons(found)["b"] == (
        "is left alone for 6.4 s at most: a holds 640 of the prompt's 642 tokens and should be "
        "free before"
    )
    assert verdict(found)[0] == (
        "642 tokens of prompt and 100 of answer would wait for a, which holds the prompt's "
        "beginning, for 6.4 s at most"
    )
