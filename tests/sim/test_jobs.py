"""Jobs in a fleet in memory: whatever dies, each has its parts once, in order, and one end."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from bus.ids import pack_ids
from tests.harness.memory_fleet import CLIENT, MemoryFleet, Stream
from tests.harness.memory_node import NodeHost
from tests.harness.memory_parts import MODEL
from tests.harness.memory_watch import Observer
from tests.harness.memory_worker import VECTOR_BYTES, made_up_vector


class Checked(Observer):
    """Checks the desk's invariants after every event."""

    fleet: MemoryFleet | None = None

    def after_event(self) -> None:
        if self.fleet is not None and self.fleet.head is not None:
            self.fleet.head.core.runs.jobs.validate_state()


def fleet_of(nodes: int, seed: int = 0) -> MemoryFleet:
    watch = Checked()
    fleet = MemoryFleet(seed, nodes, watch=watch, encoder=True)
    watch.fleet = fleet
    fleet.run(1.0)
    return fleet


def embed(fleet: MemoryFleet, texts: Sequence[str]) -> Stream:
    return fleet.request("embed", model=MODEL, input=list(texts), credit=4096)


def check_vectors(stream: Stream, texts: Sequence[str]) -> None:
    """What came so far is the vectors of the first texts, each once, and at the end of all."""
    index = 0
    for event in stream.events:
        assert (event["type"], event["index"]) == ("embeddings", index)
        some = texts[index : index + event["count"]]
        made = [made_up_vector(pack_ids(text.encode())) for text in some]
        assert event["vectors"] == b"".join(made)
        assert 4 * event["dimension"] == VECTOR_BYTES
        index += event["count"]
    if stream.end is not None and stream.end["finish"] == "done":
        assert index == len(texts)
        assert stream.end["usage"] == {"prompt": sum(map(len, texts))}


def check_idle(fleet: MemoryFleet) -> None:
    """Nothing of any job is left anywhere."""
    assert fleet.head is not None
    assert fleet.head.core.runs.jobs.counts() == {}
    for node in fleet.nodes:
        assert node.core is not None
        assert not node.core.is_busy
        assert node.worker is not None
        assert not node.worker.embedding


def busy(fleet: MemoryFleet) -> NodeHost | None:
    """A node whose worker has a job."""
    return next((n for n in fleet.nodes if n.worker is not None and n.worker.embedding), None)


MANY = [f"text {number}" for number in range(300)]


def test_vectors_come_whole_and_in_order() -> None:
    fleet = fleet_of(1)
    streams = {size: embed(fleet, MANY[:size]) for size in (1, 2, 17, 300)}
    fleet.finish(*streams.values())
    for size, stream in streams.items():
        assert stream.error is None
        check_vectors(stream, MANY[:size])
    check_idle(fleet)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("fault", ["worker", "link", "agent"])
def test_what_dies_in_the_middle_costs_time_alone(nodes: int, fault: str) -> None:
    fleet = fleet_of(nodes)
    stream = embed(fleet, MANY)
    fleet.run_until(lambda: busy(fleet) is not None)
    node = busy(fleet)
    assert node is not None
    if fault == "worker":
        node.kill_worker()
    elif fault == "link":
        node.cut_connection()
    else:
        node.kill()
        fleet.after(1.0, node.start)
    fleet.finish(stream)
    assert stream.error is None
    check_vectors(stream, MANY)
    fleet.run(5.0)
    check_idle(fleet)


def test_a_link_that_ends_between_parts_repeats_none() -> None:
    fleet = fleet_of(2)
    fleet.network.delay_s = 0.01
    stream = embed(fleet, MANY)
    fleet.run_until(lambda: 0 < len(stream.events) < 18)
    for node in fleet.nodes:
        node.cut_connection()
    fleet.finish(stream)
    assert stream.error is None
    check_vectors(stream, MANY)


def test_a_job_that_kills_three_workers_is_given_up() -> None:
    fleet = fleet_of(3)
    stream = embed(fleet, MANY)
    for _ in range(3):
        fleet.run_until(lambda: busy(fleet) is not None)
        node = busy(fleet)
        assert node is not None
        node.kill_worker()
    fleet.finish(stream)
    assert stream.error is not None
    assert stream.error["code"] == "node_lost"
    again = embed(fleet, MANY[:3])
    fleet.finish(again)
    check_vectors(again, MANY[:3])


def test_a_client_that_is_gone_frees_its_nodes() -> None:
    fleet = fleet_of(2)
    for _ in range(6):
        embed(fleet, MANY)
    fleet.run_until(lambda: busy(fleet) is not None)
    assert fleet.head is not None
    fleet.head.client_gone(CLIENT)
    fleet.run(1.0)
    check_idle(fleet)


@pytest.mark.parametrize("seed", range(12))
def test_under_random_faults_every_request_has_one_right_end(seed: int) -> None:
    """Workers, agents, links and once the head die, requests come and are cancelled, for 40 s."""
    fleet = fleet_of(3, seed)
    fleet.network.delay_s = 0.005
    rng = fleet.rng
    asked: list[tuple[Stream, list[str]]] = []
    lost: set[bytes] = set()

    def ask() -> None:
        first = rng.randrange(250)
        texts = MANY[first : first + rng.choice((1, 5, 50))]
        if fleet.head is None:
            return
        stream = embed(fleet, texts)
        asked.append((stream, texts))
        if rng.random() < 0.2:
            cancel = {"op": "cancel", "id": b"x" + stream.id, "about": stream.id}
            fleet.streams[b"x" + stream.id] = Stream(b"x" + stream.id)
            fleet.after(rng.random(), lambda: fleet.to_head(CLIENT, cancel))

    def restart_head() -> None:
        # Its clients' connections end with it, and with them what they asked for.
        lost.update(stream.id for stream, _ in asked if not stream.closed)
        fleet.kill_head()
        fleet.after(0.5, fleet.start_head)

    def harm() -> None:
        node = rng.choice(fleet.nodes)
        how = rng.randrange(3)
        if how == 0:
            node.kill_worker()
        elif how == 1:
            node.cut_connection()
        elif node.core is not None:
            node.kill()
            fleet.after(rng.random() * 3, node.start)

    for _ in range(120):
        fleet.after(rng.random() * 40, ask)
    for _ in range(16):
        fleet.after(rng.random() * 40, harm)
    fleet.after(20.0, restart_head)
    fleet.run(40.0)
    fleet.finish(*(stream for stream, _ in asked if stream.id not in lost))
    for stream, texts in asked:
        check_vectors(stream, texts)
        if stream.error is not None:
            assert stream.error["code"] == "node_lost"
    done = sum(stream.end is not None and stream.end["finish"] == "done" for stream, _ in asked)
    assert done > 80
    assert len(lost) < 15
    fleet.run(10.0)
    check_idle(fleet)


def test_the_made_up_vectors_are_numbers() -> None:
    values = struct.unpack(f"<{VECTOR_BYTES // 4}f", made_up_vector(b""))
    assert len(values) == 2048
