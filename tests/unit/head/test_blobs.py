"""Files on their way to nodes: the request goes after them, once, and every failure is told."""

from __future__ import annotations

import itertools
from itertools import count
from typing import Any

import pytest

from bus.blob_receiver import BlobReceiver
from bus.blob_sender import STALL_S
from bus.ids import CommandId, Epoch, GenerationId, NodeIdentity, SessionId
from bus.messages.link import GenerateReq
from bus.messages.link_transfers import XferAbort, XferBegin, XferChunk
from bus.messages.parts import BlobRef
from bus.messages.sampling import SamplingParams
from bus.timers import Timers
from bus.transfer import CHUNK_BYTES
from head.blobs import BlobDesk
from head.effects import SendLink
from head.outbox import Outbox
from tests.harness.blob_rig import BlobsInMemory, some_bytes

NODE, OTHER = NodeIdentity("node-1"), NodeIdentity("node-2")


class Bench:
    """A desk, and nodes that receive what it sends."""

    def __init__(self, link_bytes_per_s: int = 0) -> None:
        self.outbox = Outbox()
        self.files = BlobsInMemory()
        self.timers = Timers()
        self.desk = BlobDesk(
            self.outbox, self.files, self.timers, link_bytes_per_s=link_bytes_per_s
        )
        self.stores: dict[NodeIdentity, BlobsInMemory] = {}
        self.nodes: dict[int, BlobReceiver] = {}
        self.now = 0.0
        self.sent: list[tuple[int, Any]] = []
        self.failures: list[tuple[int, str]] = []
        self._links = count(1)
        self._generations = count(1)

    def join(self, node: NodeIdentity = NODE, incarnation: int = 1) -> int:
        link = next(self._links)
        store = self.stores.setdefault(node, BlobsInMemory())
        self.nodes[link] = BlobReceiver(store, set)
        self.desk.link_up(link, node, incarnation)
        return link

    def file(self, length: int, seed: int = 0) -> BlobRef:
        return self.files.put(some_bytes(length, seed))

    def request(self, *blobs: BlobRef, wall_ms: int = 0) -> GenerateReq:
        return GenerateReq(
            command=CommandId(1),
            session=SessionId("s"),
            epoch=Epoch(1),
            generation=GenerationId(next(self._generations)),
            sampling=SamplingParams(),
            max_new_tokens=1,
            prompt_tokens=1,
            blobs=blobs,
            wall_ms=wall_ms,
        )

    def failed(self, request: GenerateReq) -> Any:
        return lambda code, message, now: self.failures.append((request.generation, code))

    def generate(self, link: int, *blobs: BlobRef, **keys: int) -> GenerateReq:
        request = self.request(*blobs, **keys)
        self.desk.generate(link, request, self.failed(request), self.now)
        return request

    def turn(self) -> bool:
        """One turn of the head and of each node; False when nothing came of it."""
        self.timers.fire(self.now)
        outputs = [each.output for each in self.outbox.drain().outputs]
        answers: list[tuple[int, Any]] = []
        for output in outputs:
            assert isinstance(output, SendLink)
            self.sent.append((output.link, output.message))
            node = self.nodes.get(output.link)
            if node is not None and node.receive(output.message, self.now):
                node.settle()
                answers += [(output.link, answer) for answer in node.messages()]
        self.now += 0.001
        for link, answer in answers:
            self.desk.receive(link, answer, self.now)
        return bool(outputs)

    def run(self) -> None:
        while self.turn():
            pass

    def requests(self, link: int) -> list[GenerateReq]:
        return [m for to, m in self.sent if to == link and isinstance(m, GenerateReq)]

    def chunk_bytes(self) -> int:
        return sum(len(m.data) for _, m in self.sent if isinstance(m, XferChunk))


def test_a_request_without_files_goes_at_once() -> None:
    bench = Bench()
    link = bench.join()
    request = bench.generate(link)
    bench.turn()
    assert bench.sent == [(link, request)]


def test_a_request_goes_after_all_its_files() -> None:
    bench = Bench()
    link = bench.join()
    files = [bench.file(300_000, 1), bench.file(10, 2), bench.file(0, 3)]
    request = bench.generate(link, *files)
    assert bench.desk.is_waiting(request.generation)
    bench.run()
    assert bench.sent[-1] == (link, request)
    assert bench.requests(link) == [request]
    assert set(bench.stores[NODE].data) == {file.sha256 for file in files}
    assert not bench.desk.is_waiting(request.generation)


def test_one_chunk_a_turn_goes_to_each_link() -> None:
    bench = Bench()
    links = [bench.join(), bench.join(OTHER)]
    for link in links:
        bench.generate(link, bench.file(3_000_000, 1), bench.file(3_000_000, 2))
    most = 0
    while True:
        before = len(bench.sent)
        if not bench.turn():
            break
        chunks = [to for to, m in bench.sent[before:] if isinstance(m, XferChunk)]
        most = max(most, *(chunks.count(link) for link in links), 0)
    assert most == 1


def test_files_keep_to_the_pace_of_each_link() -> None:
    bench = Bench(link_bytes_per_s=CHUNK_BYTES * 10)
    one, other = bench.join(NODE), bench.join(OTHER)
    file = bench.file(CHUNK_BYTES * 20)
    bench.generate(one, file)
    bench.generate(other, file)
    times: dict[int, list[float]] = {one: [], other: []}
    seen = 0
    while not (bench.requests(one) and bench.requests(other)):
        bench.turn()
        for link, message in bench.sent[seen:]:
            if isinstance(message, XferChunk):
                times[link].append(bench.now)
        seen = len(bench.sent)
        assert bench.now < 5.0
    for sent_at in times.values():
        assert len(sent_at) == 20
        assert sent_at[-1] - sent_at[0] == pytest.approx(1.9, abs=0.02)
        apart = [after - before for before, after in itertools.pairwise(sent_at)]
        assert max(apart) < 0.11
        assert min(apart) > 0.09


def test_a_link_that_is_behind_its_pace_makes_up_for_a_tenth_of_a_second() -> None:
    bench = Bench(link_bytes_per_s=CHUNK_BYTES * 20)
    link = bench.join()
    bench.generate(link, bench.file(CHUNK_BYTES * 40))
    while bench.chunk_bytes() < CHUNK_BYTES * 4:
        bench.turn()
    bench.now += 10.0
    before = bench.chunk_bytes()
    for _ in range(40):
        bench.turn()
    assert (bench.chunk_bytes() - before) // CHUNK_BYTES in (3, 4)


def test_the_pace_of_one_link_holds_up_no_other() -> None:
    bench = Bench(link_bytes_per_s=CHUNK_BYTES // 10)
    slow, other = bench.join(NODE), bench.join(OTHER)
    bench.generate(slow, bench.file(CHUNK_BYTES * 3, 1))
    for _ in range(50):
        bench.turn()
    assert bench.chunk_bytes() == CHUNK_BYTES
    small = bench.generate(other, bench.file(1000, 2))
    # Its 1,000 bytes take 76 ms at that pace, then its end may go.
    for _ in range(100):
        bench.turn()
    assert bench.requests(other) == [small]
    assert bench.chunk_bytes() == CHUNK_BYTES + 1000


def test_a_file_goes_to_a_node_once() -> None:
    bench = Bench()
    link = bench.join()
    file = bench.file(300_000)
    first, second = bench.generate(link, file), bench.generate(link, file)
    bench.run()
    third = bench.generate(link, file)
    bench.run()
    assert bench.requests(link) == [first, second, third]
    assert bench.chunk_bytes() == 300_000
    assert sum(isinstance(m, XferBegin) for _, m in bench.sent) == 1


def test_what_a_node_has_is_remembered_while_it_runs() -> None:
    bench = Bench()
    file = bench.file(1000)
    bench.generate(bench.join(), file)
    bench.run()
    bench.desk.link_down(1)
    again = bench.join()
    bench.generate(again, file)
    bench.run()
    assert sum(isinstance(m, XferBegin) for _, m in bench.sent) == 1
    # Started again: it is asked, and says that it has it.
    bench.desk.link_down(again)
    restarted = bench.join(incarnation=2)
    bench.generate(restarted, file)
    bench.run()
    assert sum(isinstance(m, XferBegin) for _, m in bench.sent) == 2
    assert bench.chunk_bytes() == 1000
    assert len(bench.requests(restarted)) == 1


def test_a_node_that_evicted_a_file_gets_it_again_once() -> None:
    bench = Bench()
    link = bench.join()
    file, other = bench.file(1000, 1), bench.file(1000, 2)
    request = bench.generate(link, file, other)
    bench.run()
    bench.stores[NODE].remove(file.sha256)
    assert bench.desk.missing(link, request, bench.failed(request), bench.now)
    bench.run()
    assert bench.requests(link) == [request, request]
    assert bench.chunk_bytes() == 3000
    assert not bench.desk.missing(link, request, bench.failed(request), bench.now)
    bench.desk.drop(link, request.generation, bench.now)
    assert bench.desk.missing(link, request, bench.failed(request), bench.now)


def test_a_lost_link_drops_the_request_and_the_transfer_goes_on() -> None:
    bench = Bench()
    link = bench.join()
    file = bench.file(2_000_000)
    request = bench.generate(link, file)
    while bench.chunk_bytes() < 1_000_000:
        bench.turn()
    node = bench.nodes.pop(link)
    node.link_down(bench.now)
    bench.desk.link_down(link)
    bench.run()
    assert not bench.desk.is_waiting(request.generation)
    assert not bench.requests(link)
    again = bench.join()
    bench.nodes[again] = node
    bench.desk.generate(again, request, bench.failed(request), bench.now)
    bench.run()
    assert bench.requests(again) == [request]
    assert bench.chunk_bytes() < 2_000_000 + 3 * 128 * 1024


def test_a_cancelled_request_withdraws_what_only_it_wanted() -> None:
    bench = Bench()
    link = bench.join()
    shared, own = bench.file(1_000_000, 1), bench.file(1_000_000, 2)
    cancelled = bench.generate(link, shared, own)
    other = bench.generate(link, shared)
    bench.turn()
    bench.desk.drop(link, cancelled.generation, bench.now)
    bench.run()
    assert bench.requests(link) == [other]
    assert sum(isinstance(m, XferAbort) for _, m in bench.sent) == 1
    assert set(bench.stores[NODE].data) == {shared.sha256}
    assert bench.failures == []


@pytest.mark.parametrize(
    ("fault", "code"),
    [("budget", "too_large"), ("disk", "storage_full"), ("hash", "hash_mismatch")],
)
def test_a_file_that_does_not_arrive_fails_its_requests_alone(fault: str, code: str) -> None:
    bench = Bench()
    link = bench.join()
    bad, good = bench.file(500_000, 1), bench.file(10, 2)
    if fault == "budget":
        bench.stores[NODE].index.budget_bytes = 499_999
    elif fault == "disk":
        bench.stores[NODE].disk_bytes = 200_000
    else:
        bench.files.data[bad.sha256] = bytes(500_000)
    failing, other = bench.generate(link, bad), bench.generate(link, good)
    bench.run()
    assert bench.failures == [(failing.generation, code)]
    assert bench.requests(link) == [other]


def test_a_head_that_lost_the_file_says_so() -> None:
    bench = Bench()
    link = bench.join()
    file = bench.file(500_000)
    request = bench.generate(link, file)
    bench.turn()
    bench.files.remove(file.sha256)
    bench.run()
    assert bench.failures == [(request.generation, "blob_missing")]


def test_a_silent_node_fails_the_request() -> None:
    bench = Bench()
    link = bench.join()
    del bench.nodes[link]
    request = bench.generate(link, bench.file(10))
    bench.run()
    assert bench.timers.next_timeout() == pytest.approx(STALL_S, abs=0.1)
    bench.now = STALL_S + 1
    bench.run()
    assert bench.failures == [(request.generation, "timed_out")]


def test_the_time_for_files_counts_in_the_wall_budget() -> None:
    bench = Bench()
    link = bench.join()
    bench.generate(link, bench.file(300_000), wall_ms=10_000)
    bench.turn()
    bench.now += 4.0
    bench.run()
    (sent,) = bench.requests(link)
    assert 5_900 <= sent.wall_ms <= 6_000
