"""Answers that wait at the head: for a lane, for a node that comes back, over a head's restart."""

from __future__ import annotations

from bus.ids import CommandId, Epoch, ModelName, SessionId
from bus.messages.link import SessionAssign
from head.book import MAX_OPEN_REQUESTS
from tests.harness.memory_fleet import MemoryFleet
from tests.sim.test_memory_fleet import check_complete, whole_answer


def test_queued_request_with_a_key_outlives_the_head() -> None:
    fleet = MemoryFleet(nodes=1)
    fleet.run(1.0)
    running = [fleet.generate(f"long {i}", 400, credit=1000) for i in range(5)]
    waiting = fleet.generate("patient", 10, key="patient")
    fleet.run(0.5)
    assert all(stream.tokens for stream in running[:4])
    assert not waiting.tokens
    fleet.kill_head()
    fleet.start_head()
    again = fleet.request("attach", key="patient")
    fleet.finish(again)
    check_complete(again, "patient", 10)


def test_key_names_one_request_also_after_a_restart_of_the_head() -> None:
    fleet = MemoryFleet(nodes=1)
    fleet.run(1.0)
    first = fleet.generate("mine", 10, key="k")
    fleet.finish(first)
    fleet.kill_head()
    fleet.start_head()
    again = fleet.generate("mine", 10, key="k", on_disconnect="keep", credit=20)
    others = [fleet.generate("yours", 10, key="k"), fleet.generate("mine", 11, key="k")]
    fleet.finish(again, *others)
    check_complete(again, "mine", 10)
    for other in others:
        assert other.error is not None
        assert (other.error["code"], other.error["param"]) == ("invalid", "key")
        assert not other.tokens


def test_request_waits_for_a_worker_that_is_being_started_again() -> None:
    fleet = MemoryFleet(nodes=1)
    fleet.run(1.0)
    fleet.nodes[0].kill_worker(respawn_s=2.0)
    stream = fleet.generate("in between", 10)
    fleet.finish(stream, limit_s=5.0)
    check_complete(stream, "in between", 10)


def test_crowd_waits_out_the_death_of_all_workers_long_after_the_start() -> None:
    fleet = MemoryFleet(nodes=2)
    fleet.run(60.0)
    for node in fleet.nodes:
        node.kill_worker(respawn_s=0.5)
    streams = [fleet.generate(f"crowd {i}", 5) for i in range(40)]
    fleet.finish(*streams, limit_s=30.0)
    for i, stream in enumerate(streams):
        check_complete(stream, f"crowd {i}", 5)


def test_request_placed_while_its_worker_dies_goes_to_the_next_worker() -> None:
    fleet = MemoryFleet(nodes=1)
    fleet.run(1.0)
    stream = fleet.generate("unlucky", 10)
    fleet.run_until(lambda: any(event["type"] == "placed" for event in stream.events))
    assert not stream.tokens
    fleet.nodes[0].kill_worker(respawn_s=1.0)
    fleet.finish(stream, limit_s=10.0)
    if stream.error is not None:
        assert stream.error["code"] == "node_lost"
        assert stream.tokens == whole_answer("unlucky", stream.error["details"]["offset"])
    else:
        check_complete(stream, "unlucky", 10)


def test_request_waits_for_a_node_whose_link_was_cut() -> None:
    fleet = MemoryFleet(nodes=1)
    fleet.run(1.0)
    fleet.nodes[0].cut_connection()
    stream = fleet.generate("hold on", 10)
    fleet.finish(stream, limit_s=5.0)
    check_complete(stream, "hold on", 10)


def test_request_is_refused_when_no_node_came_in_time() -> None:
    fleet = MemoryFleet(nodes=1)
    fleet.run(1.0)
    fleet.nodes[0].kill()
    stream = fleet.generate("in vain", 10)
    fleet.finish(stream, limit_s=15.0)
    assert stream.error is not None
    assert stream.error["code"] == "no_node"
    assert "node-1" in stream.error["details"]["nodes"]


def test_wall_budget_ends_a_request_that_waits() -> None:
    fleet = MemoryFleet(nodes=1)
    fleet.run(1.0)
    running = [fleet.generate(f"long {i}", 400, credit=1000) for i in range(5)]
    stream = fleet.generate("hurried", 10, max_wall_ms=500)
    fleet.finish(stream, limit_s=1.0)
    assert stream.error is not None
    assert stream.error["code"] == "expired"
    fleet.finish(*running)


def test_node_that_gives_orders_to_the_head_loses_its_link_and_may_come_back() -> None:
    fleet = MemoryFleet(nodes=1)
    fleet.run(1.0)
    node = fleet.nodes[0]
    assert node.endpoint is not None
    node.endpoint.send(
        SessionAssign(
            command=CommandId(1),
            session=SessionId("s"),
            epoch=Epoch(1),
            model=ModelName("toy"),
            lease_ms=1,
        )
    )
    first = node.endpoint.link_id
    node.turn()
    fleet.run_until(
        lambda: node.endpoint is not None and node.endpoint.link_id not in (first, None), 10.0
    )
    fleet.run(1.0)
    stream = fleet.generate("after all", 10)
    fleet.finish(stream, limit_s=5.0)
    check_complete(stream, "after all", 10)


def test_connection_may_have_so_many_open_requests_and_no_more() -> None:
    fleet = MemoryFleet(nodes=1)
    stream = fleet.generate("popular", 5, key="popular")
    fleet.finish(stream)
    readers = [
        fleet.request("attach", key="popular", credit=1, offset=0) for _ in range(MAX_OPEN_REQUESTS)
    ]
    fleet.finish(*readers)
    slow = [fleet.generate(f"s{i}", 50, credit=1) for i in range(MAX_OPEN_REQUESTS)]
    last = fleet.generate("one too many", 1)
    fleet.finish(last)
    assert last.error is not None
    assert last.error["code"] == "rate_limited"
    assert not any(stream.error for stream in slow)


def test_many_that_wait_for_a_loading_model_cost_one_timer_a_queue() -> None:
    fleet = MemoryFleet(nodes=1)
    fleet.run(1.0)
    fleet.nodes[0].kill_worker(respawn_s=6.0)
    streams = [fleet.generate(f"crowd {i}", 3) for i in range(100)]
    fleet.run(5.0)
    assert fleet.head is not None
    assert len(fleet.head.core._timers._callbacks) < 10
    fleet.finish(*streams, limit_s=30.0)
    for i, stream in enumerate(streams):
        check_complete(stream, f"crowd {i}", 3)


def test_crowd_larger_than_one_look_is_refused_as_a_whole_when_no_node_comes() -> None:
    fleet = MemoryFleet(nodes=0)
    streams = [fleet.generate(f"crowd {i}", 3) for i in range(200)]
    fleet.finish(*streams, limit_s=15.0)
    assert {stream.error["code"] for stream in streams if stream.error} == {"no_node"}
    assert fleet.head is not None
    assert fleet.head.core.runs.waiting.counts() == {}


def test_unread_request_that_waited_when_the_head_died_is_cancelled_after_it() -> None:
    fleet = MemoryFleet(nodes=1)
    fleet.run(1.0)
    running = [fleet.generate(f"long {i}", 400, credit=1000) for i in range(5)]
    fleet.generate("given up", 10, key="given up", on_disconnect="cancel")
    fleet.run(0.5)
    assert all(stream.tokens for stream in running[:4])
    fleet.kill_head()
    fleet.start_head()
    fleet.run(30.0)
    again = fleet.request("attach", key="given up")
    fleet.finish(again)
    assert again.end is not None
    assert again.end["finish"] == "cancelled"
    assert again.tokens == []
