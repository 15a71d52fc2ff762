"""Cases from the field under virtual time: long work, suspended heads, restarts; by their numbers.

All limits are the defaults: silence 30 s, leases 20 s, a probe 2 s.
"""

from __future__ import annotations

from bus.ids import Epoch, SessionId
from bus.messages.link import SessionAssign
from head.effects import Output, SendLink
from tests.harness.fleet_checks import check_complete, check_idle
from tests.harness.memory_fleet import MemoryFleet, Stream
from tests.harness.memory_watch import Observer


class Watch(Observer):
    """Keeps which links the head took to be up and over, and which epochs it assigned."""

    def __init__(self) -> None:
        self.ups: list[str] = []
        self.downs = 0
        self.epochs: dict[SessionId, list[Epoch]] = {}

    def link_up(self, role: str, name: str, link_id: int) -> None:
        if role == "head":
            self.ups.append(name)

    def link_down(self, role: str, name: str, link_id: int) -> None:
        self.downs += role == "head"

    def released(self, output: Output) -> None:
        if isinstance(output, SendLink) and isinstance(output.message, SessionAssign):
            self.epochs.setdefault(output.message.session, []).append(output.message.epoch)


def moves(stream: Stream) -> list[str]:
    return [event["reason"] for event in stream.events if event["type"] == "moved"]


def up(fleet: MemoryFleet) -> int:
    """Nodes that the head takes to be up."""
    assert fleet.head is not None
    return sum(node.up for node in fleet.head.core.fleet.nodes)


def test_l5_a_node_is_never_lost_while_its_worker_makes_no_step_for_minutes() -> None:
    watch = Watch()
    fleet = MemoryFleet(nodes=2, watch=watch)
    fleet.run(1.0)
    for node in fleet.nodes:
        node.worker_paused = True
    streams = [fleet.generate(f"prefill {i}", 60) for i in range(4)]
    for _ in range(300):
        fleet.run(1.0)
        assert up(fleet) == 2
    assert not any(stream.tokens for stream in streams)
    for node in fleet.nodes:
        node.worker_paused = False
    fleet.finish(*streams)
    for i, stream in enumerate(streams):
        check_complete(stream, f"prefill {i}", 60)
        assert moves(stream) == []
    assert watch.downs == 0
    check_idle(fleet)


def test_l7_sessions_go_on_after_a_head_was_suspended_for_40_s() -> None:
    # Longer than the nodes' patience, than every lease, and than their windows are deep.
    fleet = MemoryFleet(nodes=4, windows=(4096,) * 4)
    fleet.run(1.0)
    streams = [fleet.generate(f"suspended {i}", 2000, credit=4096) for i in range(8)]
    fleet.run(5.0)
    assert fleet.head is not None
    fleet.head.pause()
    fleet.run(40.0)
    fleet.head.resume()
    resumed = fleet.now
    fleet.run_until(lambda: up(fleet) == 4, 1.0)
    fleet.finish(*streams)
    for i, stream in enumerate(streams):
        check_complete(stream, f"suspended {i}", 2000)
    # Nobody waited for a silence limit or for nodes to be found again.
    assert fleet.now - resumed < 25.0
    fleet.run(30.0)
    check_idle(fleet)


NODES = 200


def test_l8_200_nodes_lose_the_head_and_come_back_and_nothing_is_lost() -> None:
    watch = Watch()
    fleet = MemoryFleet(nodes=NODES, watch=watch)
    fleet.run_until(lambda: up(fleet) == NODES, 10.0)
    streams = [fleet.generate(f"crowd {i}", 80, credit=4096, key=f"k{i}") for i in range(NODES)]
    fleet.run(0.8)
    assert all(0 < len(stream.tokens) < 80 for stream in streams)
    watch.ups.clear()
    fleet.kill_head()
    fleet.run(1.0)
    fleet.start_head()
    fleet.run_until(lambda: up(fleet) == NODES, 10.0)
    assert sorted(watch.ups) == sorted(node.name for node in fleet.nodes)
    again = [
        fleet.request("attach", key=f"k{i}", offset=len(stream.tokens), credit=4096)
        for i, stream in enumerate(streams)
    ]
    fleet.finish(*again)
    for i, (first, rest) in enumerate(zip(streams, again, strict=True)):
        rest.tokens[:0] = first.tokens
        check_complete(rest, f"crowd {i}", 80)
    # Each node was there in time, so nothing was moved or begun again.
    assert [len(epochs) for epochs in watch.epochs.values()] == [1] * NODES
    fleet.run(5.0)
    check_idle(fleet)


def test_l11_a_node_that_restarts_before_its_old_link_ended_gets_its_sessions_again() -> None:
    watch = Watch()
    fleet = MemoryFleet(windows=(4096,), watch=watch)
    fleet.run(1.0)
    streams = [fleet.generate(f"restart {i}", 300, credit=4096) for i in range(3)]
    fleet.run(1.0)
    node = fleet.nodes[0]
    (old,) = fleet.network.connections
    fleet.network.block(node.name, "head")
    node.kill()
    old.unaware.clear()  # The head is never told; only silence could tell it.
    fleet.network.unblock(node.name, "head")
    node.start()
    started = fleet.now
    fleet.run_until(lambda: len(watch.ups) == 2, 5.0)
    assert 1.9 < fleet.now - started < 3.0, "the old link was asked first, and did not answer"
    assert watch.downs == 1
    fleet.finish(*streams)
    for i, stream in enumerate(streams):
        check_complete(stream, f"restart {i}", 300)
        assert moves(stream) == ["node node-1 was started again"]
        first, second = watch.epochs[SessionId(stream.session)]
        assert second > first
    fleet.run(5.0)
    check_idle(fleet)
