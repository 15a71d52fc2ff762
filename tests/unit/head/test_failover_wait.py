"""How long answers wait when no node could take them: for one to come, and for one that loads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.ids import NodeIdentity, WorkerIncarnation
from bus.messages.link import GenerateReq, NodeConfirm, NodeStatus
from bus.messages.parts import ModelStatus
from tests.harness.head_bench import ADMITTED_ANSWER, TOY, Bench, run
from tests.harness.memory_parts import DIGEST

LOADING = ModelStatus(name=TOY, phase="loading")
READY = ModelStatus(
    name=TOY,
    phase="ready",
    window_tokens=64,
    lanes_total=2,
    tokenizer_digest=DIGEST,
    worker=WorkerIncarnation(2),
)
FAILED = replace(LOADING, phase="failed", problem="no memory")


@pytest.fixture
def bench() -> Bench:
    """A stream whose only node was ended, and started again 25 s later; it loads."""
    made = Bench()
    made.node(1)
    request = made.ask(max_new=10)
    made.hear(1, run(request, 0, 65))
    made.down(1, left=True)
    made.wait(25.0)
    confirm = NodeConfirm(
        identity=NodeIdentity("n1"), incarnation=2, software="x", models=(LOADING,)
    )
    made.core.link_up(2, confirm, made.now)
    made.settle()
    return made


def errors(bench: Bench) -> list[dict[str, Any]]:
    return [reply["error"] for reply in bench.replies if reply["kind"] == "error"]


def test_a_node_that_has_come_is_waited_for_while_it_loads(bench: Bench) -> None:
    bench.wait(200.0)
    assert errors(bench) == []
    bench.hear(2, NodeStatus(models=(READY,)))
    (again,) = bench.on(2, GenerateReq)
    assert again.generated_tokens == 1


def test_a_node_that_does_not_load_is_not_waited_for(bench: Bench) -> None:
    bench.wait(100.0)
    bench.hear(2, NodeStatus(models=(FAILED,)))
    bench.wait(1.1)
    (error,) = errors(bench)
    assert (error["code"], error["details"]["offset"]) == ("node_lost", 1)
    assert "no memory" in error["message"]


def test_a_node_that_loads_and_gets_no_work_is_not_waited_for(bench: Bench) -> None:
    bench.hear(2, NodeStatus(models=(LOADING,), draining=True))
    bench.wait(6.0)
    assert [error["code"] for error in errors(bench)] == ["node_lost"]


def test_the_wait_begins_anew_with_the_next_failure(bench: Bench) -> None:
    bench.hear(2, NodeStatus(models=(READY,)))
    bench.hear(2, run(bench.last(GenerateReq), 0, 66))
    bench.down(2, left=True)
    bench.wait(29.0)
    assert errors(bench) == []
    bench.wait(1.1)
    assert [error["details"]["offset"] for error in errors(bench)] == [2]


def test_a_request_that_waited_for_a_lane_is_not_refused_the_moment_its_node_goes() -> None:
    bench = Bench()
    bench.node(1)
    for number in range(3):
        bench.ask(b"r%d" % number, max_new=10, qos="background")
    # It goes before them, were there a lane.
    bench.ask(b"waits", max_new=10, qos="agent")
    assert bench.core.runs.waiting.counts() == {TOY: 1}
    bench.wait(60.0)
    bench.down(1, left=True)
    bench.wait(9.9)
    assert errors(bench) == []
    bench.wait(0.2)
    assert [error["code"] for error in errors(bench)] == ["no_node"]


def test_a_stream_that_waited_for_room_waits_for_a_node_as_long_as_any_other() -> None:
    bench = Bench()
    bench.node(1, "n1")
    bench.node(2, "n2")
    for number in range(6):
        bench.ask(b"r%d" % number, max_new=10)
    bench.down(1, left=True)
    assert bench.core.runs.waiting.counts() == {TOY: 3}
    bench.wait(60.0)
    bench.down(2, left=True)
    bench.wait(29.9)
    assert errors(bench) == []
    bench.wait(0.2)
    assert [error["code"] for error in errors(bench)] == ["node_lost"] * 6
    assert all("within 30 s" in error["message"] for error in errors(bench))


def test_a_request_that_waited_when_the_head_ended_waits_for_nodes_to_come_back() -> None:
    bench = Bench(replace(ADMITTED_ANSWER, created_wall_s=1e9 - 60.0))
    bench.wait(9.0)
    bench.node(1)
    assert len(bench.on(1, GenerateReq)) == 1
