"""Files with requests in a fleet in memory: real cores, real links, and what can go wrong."""

from __future__ import annotations

import pytest

from bus.messages import worker
from bus.messages.media import MediaRef
from tests.harness.blob_rig import BlobsInMemory, blob_of, some_bytes
from tests.harness.fleet_checks import check_complete
from tests.harness.memory_fleet import MemoryFleet, Stream
from tests.harness.memory_node import NodeHost
from tests.harness.memory_parts import MODEL
from tests.harness.memory_watch import Observer

DATA = some_bytes(700_000)
HASH = blob_of(DATA).sha256


class Submits(Observer):
    """Notes what workers get, by node."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, worker.Submit]] = []

    def submitted(self, node: NodeHost, submit: worker.Submit) -> None:
        super().submitted(node, submit)
        self.seen.append((node.name, submit))


def fleet_with(nodes: int = 1, *files: bytes, seed: int = 0) -> tuple[MemoryFleet, Submits]:
    watch = Submits()
    fleet = MemoryFleet(seed, nodes, watch=watch, files=True)
    ends = [fleet.put(data) for data in files]
    fleet.finish(*ends)
    assert [(end.end or {}).get("done") for end in ends] == [True] * len(files)
    return fleet, watch


def files_of(node: NodeHost) -> BlobsInMemory:
    assert node.files is not None
    return node.files


def test_a_worker_gets_the_files_in_the_order_of_the_request() -> None:
    other = some_bytes(10, 2)
    fleet, watch = fleet_with(1, DATA, other)
    hashes = [blob_of(other).sha256, HASH, blob_of(other).sha256]
    stream = fleet.generate("with files", 50, blobs=hashes)
    fleet.finish(stream)
    check_complete(stream, "with files", 50)
    ((_, submit),) = watch.seen
    assert submit.files == tuple(f"/files/{sha256.hex()}" for sha256 in hashes)
    assert files_of(fleet.nodes[0]).data == {HASH: DATA, hashes[0]: other}


def test_streams_beside_a_transfer_go_on() -> None:
    fleet, watch = fleet_with(1, DATA)
    fleet.network.delay_s = 0.05
    beside = fleet.generate("beside", 400, credit=4096)
    fleet.run_until(lambda: len(beside.tokens) > 5)
    stream = fleet.generate("with files", 20, blobs=[HASH])
    before = len(beside.tokens)
    fleet.run_until(lambda: len(watch.seen) == 2)
    assert len(beside.tokens) > before
    fleet.finish(stream, beside)
    check_complete(stream, "with files", 20)
    check_complete(beside, "beside", 400)


def test_a_file_that_nobody_put_is_missing() -> None:
    fleet, watch = fleet_with()
    stream = fleet.generate("without", 5, blobs=[HASH])
    fleet.finish(stream)
    assert stream.error is not None
    assert (stream.error["code"], stream.error["param"]) == ("blob_missing", "blobs")
    assert stream.error["details"] == {"missing": [HASH.hex()]}
    assert not watch.seen


def test_a_node_that_evicted_the_file_gets_it_again() -> None:
    fleet, watch = fleet_with(1, DATA)
    first = fleet.generate("first", 5, blobs=[HASH])
    fleet.finish(first)
    files_of(fleet.nodes[0]).remove(HASH)
    second = fleet.generate("second", 5, blobs=[HASH])
    fleet.finish(second)
    check_complete(second, "second", 5)
    assert [submit.files for _, submit in watch.seen] == [(f"/files/{HASH.hex()}",)] * 2


def test_a_node_whose_disk_is_full_leaves_the_request_to_another() -> None:
    fleet, watch = fleet_with(2, DATA)
    for node in fleet.nodes:
        files_of(node).disk_bytes = 1000
    full = fleet.generate("full", 5, blobs=[HASH])
    fleet.finish(full)
    assert full.error is not None
    assert full.error["code"] == "no_node"
    assert "disk is full" in full.error["message"]
    files_of(fleet.nodes[1]).disk_bytes = 1 << 40
    stream = fleet.generate("room", 5, blobs=[HASH])
    plain = fleet.generate("plain", 5)
    fleet.finish(stream, plain)
    check_complete(stream, "room", 5)
    check_complete(plain, "plain", 5)
    assert {node for node, submit in watch.seen if submit.files} == {"node-2"}


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05, 0.1, 0.2])
def test_a_link_lost_in_the_middle_is_taken_up_again(after_s: float) -> None:
    fleet, watch = fleet_with(1, DATA)
    fleet.network.delay_s = 0.02
    stream = fleet.generate("cut", 20, blobs=[HASH])
    fleet.run(0.1 + after_s)
    fleet.nodes[0].cut_connection()
    fleet.finish(stream)
    check_complete(stream, "cut", 20)
    assert watch.seen[-1][1].files


def test_a_node_that_dies_in_the_middle_leaves_it_to_another() -> None:
    fleet, watch = fleet_with(2, DATA)
    fleet.network.delay_s = 0.02
    stream = fleet.generate("dies", 20, blobs=[HASH])
    fleet.run_until(lambda: any(files_of(node).partials for node in fleet.nodes))
    first = next(node for node in fleet.nodes if files_of(node).partials)
    first.kill()
    fleet.finish(stream)
    check_complete(stream, "dies", 20)
    assert [node for node, _ in watch.seen] == [n.name for n in fleet.nodes if n is not first]


def test_a_stream_that_moves_takes_its_files_along() -> None:
    fleet, watch = fleet_with(2, DATA)
    stream = fleet.generate("moves", 200, blobs=[HASH])
    fleet.run_until(lambda: len(stream.tokens) > 20)
    next(node for node in fleet.nodes if node.name == watch.seen[0][0]).kill()
    fleet.finish(stream)
    check_complete(stream, "moves", 200)
    assert {node for node, _ in watch.seen} == {"node-1", "node-2"}
    assert all(submit.files for _, submit in watch.seen)


def test_a_request_outlives_the_head_with_its_files() -> None:
    fleet, watch = fleet_with(1, DATA)
    stream = fleet.generate("restart", 20, blobs=[HASH], key="k")
    fleet.run_until(lambda: bool(files_of(fleet.nodes[0]).partials))
    fleet.kill_head()
    fleet.start_head()
    again = fleet.request("attach", key="k")
    fleet.finish(again)
    assert not stream.closed
    check_complete(again, "restart", 20)
    assert watch.seen[-1][1].files


def test_a_cancelled_request_stops_its_transfer() -> None:
    fleet, watch = fleet_with(1, DATA)
    fleet.network.delay_s = 0.05
    stream = fleet.generate("cancelled", 20, blobs=[HASH])
    fleet.run_until(lambda: bool(files_of(fleet.nodes[0]).partials))
    fleet.request("cancel", about=stream.id)
    fleet.finish(stream)
    assert stream.end is not None
    assert stream.end["finish"] == "cancelled"
    fleet.run(5.0)
    assert not watch.seen
    assert not files_of(fleet.nodes[0]).data


def check_unsupported(stream: Stream) -> None:
    assert stream.error is not None
    assert stream.error["code"] == "unsupported_on_fleet"
    assert "node-1" in stream.error["message"]
    assert "update superfluid" in stream.error["message"]


def test_nodes_without_the_capability_are_passed_over_by_name() -> None:
    fleet, watch = fleet_with(2, DATA)
    old = fleet.nodes[0]
    old.kill()
    old.files = None
    old.start()
    fleet.run(1.0)
    streams = [fleet.generate(f"new {n}", 5, blobs=[HASH]) for n in range(6)]
    fleet.finish(*streams)
    assert {node for node, submit in watch.seen if submit.files} == {"node-2"}
    fleet.nodes[1].kill()
    fleet.run(1.0)
    refused = fleet.generate("old", 5, blobs=[HASH])
    plain = fleet.generate("plain", 5)
    fleet.finish(refused, plain)
    check_unsupported(refused)
    check_complete(plain, "plain", 5)


def test_a_turn_of_a_session_may_name_files_too() -> None:
    fleet, watch = fleet_with(1, DATA)
    made = fleet.request("session.create", model="toy")
    fleet.finish(made)
    session = (made.end or {})["session"]
    fleet.finish(fleet.request("session.append", session=session, tokens=[1, 2, 3]))
    for files in ((f"/files/{HASH.hex()}",), ()):
        blobs = [HASH] if files else []
        turn = fleet.request("session.generate", session=session, max_new=5, blobs=blobs)
        fleet.finish(turn)
        assert turn.end is not None
        assert watch.seen[-1][1].files == files


def test_a_prompt_with_media_reaches_the_worker_over_moves_and_restarts() -> None:
    fleet, watch = fleet_with(2, DATA)
    assert fleet.head is not None
    fleet.head.core.media.has_vision = lambda model: True
    prompt = list(b"an image")
    media = [{"offset": 3, "blob": 0, "tokens": 2}, {"offset": 5, "blob": 0, "tokens": 3}]
    keys = {"model": MODEL, "tokens": prompt, "max_new": 200, "blobs": [HASH], "key": "k"}
    stream = fleet.request("generate", media=media, **keys)
    fleet.run_until(lambda: len(stream.tokens) > 20)
    first, _ = watch.seen[-1]
    fleet.kill_head()
    fleet.start_head()
    again = fleet.request("attach", key="k")
    fleet.run_until(lambda: len(again.tokens) > 40)
    next(node for node in fleet.nodes if node.name == first).kill()
    fleet.finish(again)
    check_complete(again, "an image", 200)
    assert {node for node, _ in watch.seen} == {"node-1", "node-2"}
    refs = (MediaRef(offset=3, blob=0, tokens=2), MediaRef(offset=5, blob=0, tokens=3))
    assert all(submit.media == refs for _, submit in watch.seen)
