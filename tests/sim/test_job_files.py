"""Files that jobs name: on the node before the job, there again after an eviction or a loss."""

from __future__ import annotations

from bus.errors import SuperfluidError
from bus.ids import pack_ids
from bus.messages.job_bodies import EmbedBody, pack_body
from bus.messages.link_jobs import JobStart
from bus.messages.parts import BlobRef
from head.jobs import JobDone, JobSpec
from tests.harness.blob_rig import BlobsInMemory, blob_of, some_bytes
from tests.harness.memory_fleet import MemoryFleet
from tests.harness.memory_node import NodeHost
from tests.harness.memory_parts import MODEL
from tests.harness.memory_watch import Observer

DATA = some_bytes(500_000)
BLOB = blob_of(DATA)
BODY = pack_body(EmbedBody(inputs=(pack_ids(b"abc"),)))


class Starts(Observer):
    """Notes which nodes are told to begin, and whether they have the file."""

    fleet: MemoryFleet | None = None

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool]] = []

    def accepted(self, role: str, name: str, link_id: int, message: object) -> None:
        if isinstance(message, JobStart) and self.fleet is not None:
            node = next(node for node in self.fleet.nodes if node.name == name)
            self.seen.append((name, BLOB.sha256 in files_of(node).data))


def files_of(node: NodeHost) -> BlobsInMemory:
    assert node.files is not None
    return node.files


def fleet_with(nodes: int) -> tuple[MemoryFleet, Starts]:
    watch = Starts()
    fleet = watch.fleet = MemoryFleet(0, nodes, watch=watch, files=True, encoder=True)
    put = fleet.put(DATA)
    fleet.finish(put)
    fleet.run(1.0)
    return fleet, watch


def ask(fleet: MemoryFleet, *blobs: BlobRef) -> list[JobDone | SuperfluidError]:
    """Have a job with files done; gives a list that gets its end."""
    ends: list[JobDone | SuperfluidError] = []
    head = fleet.head
    assert head is not None
    spec = JobSpec(model=MODEL, kind="embed", body=BODY, blobs=blobs or (BLOB,))

    def submit() -> None:
        desk = head.core.runs.jobs
        desk.submit(spec, lambda *_: None, lambda end, _: ends.append(end), head.now())

    head.post(submit)
    return ends


def test_the_file_is_there_before_the_job() -> None:
    fleet, watch = fleet_with(1)
    first, second = ask(fleet), ask(fleet)
    fleet.run_until(lambda: bool(first and second))
    assert [type(end) for end in (*first, *second)] == [JobDone, JobDone]
    assert watch.seen == [("node-1", True)] * 2


def test_one_that_was_evicted_goes_there_again() -> None:
    fleet, watch = fleet_with(1)
    first = ask(fleet)
    fleet.run_until(lambda: bool(first))
    files_of(fleet.nodes[0]).remove(BLOB.sha256)
    second = ask(fleet)
    fleet.run_until(lambda: bool(second))
    assert isinstance(second[0], JobDone)
    assert watch.seen == [("node-1", True), ("node-1", False), ("node-1", True)]


def test_a_node_that_can_not_keep_it_leaves_the_job_to_another() -> None:
    fleet, watch = fleet_with(2)
    files_of(fleet.nodes[0]).disk_bytes = 1000
    ends = ask(fleet)
    fleet.run_until(lambda: bool(ends))
    assert isinstance(ends[0], JobDone)
    assert watch.seen == [("node-2", True)]
    files_of(fleet.nodes[1]).disk_bytes = 1000
    files_of(fleet.nodes[1]).remove(BLOB.sha256)
    full = ask(fleet)
    fleet.run_until(lambda: bool(full))
    assert isinstance(full[0], SuperfluidError)
    assert full[0].code == "no_node"
    assert full[0].details["nodes"]["node-1"].startswith("a file did not reach it: ")


def test_a_node_that_dies_takes_no_file_along() -> None:
    fleet, watch = fleet_with(2)
    fleet.network.delay_s = 0.02
    ends = ask(fleet)
    fleet.run_until(lambda: any(files_of(node).partials for node in fleet.nodes))
    first = next(node for node in fleet.nodes if files_of(node).partials)
    first.kill()
    fleet.run_until(lambda: bool(ends))
    assert isinstance(ends[0], JobDone)
    assert [name for name, _ in watch.seen] == [n.name for n in fleet.nodes if n is not first]
