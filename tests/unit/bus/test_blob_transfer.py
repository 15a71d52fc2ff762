"""Blobs from sender to receiver over a link in memory: whole, shared, taken up again, bounded."""

from __future__ import annotations

import random

import pytest

from bus.blob_receiver import REST_S
from bus.blob_sender import STALL_S
from bus.messages.link_transfers import XferAbort, XferBegin, XferChunk
from bus.messages.parts import BlobRef
from bus.transfer import CHUNK_BYTES, MAX_IN_FLIGHT_BYTES
from tests.harness.blob_rig import BlobRig, blob_of, some_bytes


@pytest.mark.parametrize(
    "length", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 17]
)
def test_a_blob_arrives_whole(length: int) -> None:
    rig = BlobRig()
    data = some_bytes(length)
    blob = rig.source.put(data)
    rig.offer(blob)
    (outcome,) = rig.run()
    assert not outcome.failed
    assert not outcome.had
    assert outcome.blob == blob
    assert rig.store.data == {blob.sha256: data}
    assert rig.chunk_bytes == length


def test_what_the_receiver_has_is_not_sent() -> None:
    rig = BlobRig()
    data = some_bytes(300_000)
    blob = rig.source.put(data)
    rig.store.put(data)
    rig.offer(blob)
    (outcome,) = rig.run()
    assert outcome.had
    assert not outcome.failed
    assert rig.chunk_bytes == 0


def test_a_hash_that_is_offered_twice_is_sent_once() -> None:
    rig = BlobRig()
    blob = rig.source.put(some_bytes(400_000))
    rig.offer(blob, blob)
    for _ in range(6):
        rig.step()
    rig.offer(blob)
    assert len(rig.run()) == 1
    assert rig.chunk_bytes == 400_000
    assert sum(isinstance(m, XferBegin) for m in rig.log) == 1


def test_small_blobs_do_not_wait_for_a_large_one() -> None:
    rig = BlobRig()
    large = rig.source.put(some_bytes(8 * 1024 * 1024, 1))
    small = rig.source.put(some_bytes(1000, 2))
    rig.offer(large, small)
    assert [outcome.blob for outcome in rig.run()] == [small, large]


def test_many_blobs_go_few_at_a_time() -> None:
    rig = BlobRig()
    blobs = [rig.source.put(some_bytes(1000 + n, n)) for n in range(40)]
    rig.offer(*blobs)
    assert {outcome.blob for outcome in rig.run() if not outcome.failed} == set(blobs)


def test_a_lost_link_is_taken_up_at_the_offset() -> None:
    rig = BlobRig()
    data = some_bytes(3_000_000)
    blob = rig.source.put(data)
    rig.offer(blob)
    while rig.chunk_bytes < 1_500_000:
        rig.step()
    rig.cut()
    before = rig.chunk_bytes
    rig.offer(blob)
    (outcome,) = rig.run()
    assert not outcome.failed
    assert rig.store.data[blob.sha256] == data
    # What had arrived is not sent again: all of it but what the cut took.
    assert rig.chunk_bytes - before < 3_000_000 - 1_500_000 + MAX_IN_FLIGHT_BYTES
    assert rig.chunk_bytes < 2 * 3_000_000
    first = next(m for m in rig.log[::-1] if isinstance(m, XferChunk) and m.offset + len(m.data))
    assert first.offset + len(first.data) == 3_000_000


def test_what_a_lost_link_left_goes_after_ten_minutes() -> None:
    rig = BlobRig()
    blob = rig.source.put(some_bytes(1_000_000))
    rig.offer(blob)
    while rig.chunk_bytes < 500_000:
        rig.step()
    rig.cut()
    assert rig.store.partials
    assert rig.receiver.next_timeout() == rig.now + REST_S
    rig.receiver.handle_timeout(rig.now + REST_S - 1)
    assert rig.store.partials
    rig.receiver.handle_timeout(rig.now + REST_S)
    assert not rig.store.partials
    assert rig.store.index.used_bytes == 0
    assert rig.receiver.next_timeout() is None


def test_what_rests_makes_room_for_what_comes() -> None:
    rig = BlobRig()
    rig.store.index.budget_bytes = 1_200_000
    first = rig.source.put(some_bytes(1_000_000, 1))
    second = rig.source.put(some_bytes(1_000_000, 2))
    rig.offer(first)
    while rig.chunk_bytes < 300_000:
        rig.step()
    rig.cut()
    rig.offer(second)
    (outcome,) = rig.run()
    assert outcome.blob == second
    assert not outcome.failed
    assert set(rig.store.data) == {second.sha256}


def test_a_damaged_source_fails_the_transfer_and_not_the_link() -> None:
    rig = BlobRig()
    data = some_bytes(300_000, 1)
    blob = rig.source.put(data)
    rig.source.data[blob.sha256] = data[:-1] + bytes([data[-1] ^ 1])
    other = rig.source.put(some_bytes(200_000, 2))
    rig.offer(blob, other)
    outcomes = {outcome.blob: outcome for outcome in rig.run()}
    assert outcomes[blob].code == "hash_mismatch"
    assert "another hash" in outcomes[blob].message
    assert not outcomes[other].failed
    assert set(rig.store.data) == {other.sha256}
    assert not rig.store.partials


def test_a_source_that_lost_the_blob_aborts() -> None:
    rig = BlobRig()
    blob = rig.source.put(some_bytes(1_000_000))
    rig.offer(blob)
    while rig.chunk_bytes < 300_000:
        rig.step()
    rig.source.remove(blob.sha256)
    (outcome,) = rig.run()
    assert outcome.code == "blob_missing"
    assert isinstance(rig.log[-1], XferAbort)
    # The receiver keeps what it has for a while; a later offer goes on from there.
    sent = rig.chunk_bytes
    rig.source.put(some_bytes(1_000_000))
    rig.offer(blob)
    assert not rig.run()[-1].failed
    assert rig.chunk_bytes == 1_000_000 >= sent


def test_a_withdrawn_blob_ends_without_an_outcome() -> None:
    rig = BlobRig()
    begun = rig.source.put(some_bytes(1_000_000, 1))
    rig.offer(begun)
    while rig.chunk_bytes < 300_000:
        rig.step()
    waiting = rig.source.put(some_bytes(1_000_000, 2))
    rig.offer(waiting)
    rig.sender.withdraw(waiting.sha256, "cancelled")
    rig.sender.withdraw(begun.sha256, "cancelled")
    rig.sender.withdraw(blob_of(b"never offered").sha256, "cancelled")
    assert rig.run() == []
    assert rig.sender.window.in_flight_bytes == 0
    assert not rig.store.data


def test_a_full_disk_fails_the_transfer_and_not_the_link() -> None:
    rig = BlobRig()
    rig.store.disk_bytes = 500_000
    large = rig.source.put(some_bytes(2_000_000, 1))
    rig.offer(large)
    (outcome,) = rig.run()
    assert outcome.code == "storage_full"
    assert "disk" in outcome.message
    assert rig.store.index.used_bytes == 0
    small = rig.source.put(some_bytes(1000, 2))
    rig.store.disk_bytes = 500_000
    rig.offer(small)
    assert not rig.run()[-1].failed


def test_over_the_budget_is_said_before_anything_is_sent() -> None:
    rig = BlobRig()
    rig.store.index.budget_bytes = 500_000
    rig.offer(rig.source.put(some_bytes(500_001)))
    (outcome,) = rig.run()
    assert outcome.code == "too_large"
    assert rig.chunk_bytes == 0


def test_least_recently_used_goes_first_and_never_what_is_in_use() -> None:
    rig = BlobRig()
    rig.store.index.budget_bytes = 300
    old, used, newer = (rig.store.put(some_bytes(100, n)) for n in range(3))
    rig.in_use = {used.sha256}
    rig.store.length(old.sha256)
    fresh = rig.source.put(some_bytes(150, 9))
    rig.offer(fresh)
    assert not rig.run()[-1].failed
    # 150 bytes need two of the others gone; the one in use stays.
    assert set(rig.store.data) == {used.sha256, fresh.sha256}
    rig.in_use = {used.sha256, fresh.sha256}
    rig.offer(rig.source.put(some_bytes(100, 10)))
    assert rig.run()[-1].code == "storage_full"
    assert newer.sha256 not in rig.store.data


def test_done_comes_only_when_it_is_on_disk() -> None:
    rig = BlobRig()
    rig.store.slow = True
    blob = rig.source.put(some_bytes(200_000))
    rig.offer(blob)
    assert rig.run() == []
    rig.store.sync()
    assert [o.failed for o in rig.run()] == [False]


def test_a_link_lost_while_it_is_put_on_disk_loses_nothing() -> None:
    rig = BlobRig()
    rig.store.slow = True
    blob = rig.source.put(some_bytes(200_000))
    rig.offer(blob)
    rig.run()
    rig.cut()
    rig.offer(blob)
    rig.run()
    rig.store.sync()
    assert not rig.run()[-1].failed
    assert rig.chunk_bytes == 200_000


def test_a_silent_receiver_ends_the_transfer() -> None:
    rig = BlobRig()
    rig.offer(rig.source.put(b"x"))
    (begin,) = rig.sender.next_messages(5.0)
    assert isinstance(begin, XferBegin)
    assert rig.sender.next_timeout() == 5.0 + STALL_S
    rig.sender.handle_timeout(5.0 + STALL_S)
    (outcome,) = rig.sender.outcomes()
    assert outcome.code == "timed_out"
    assert rig.sender.next_timeout() is None


@pytest.mark.parametrize(
    ("rate", "delay_s", "least", "most"),
    [
        # A round trip and 10 ms, at most 100 ms: of 300 kB/s less than a chunk, which may go all
        # the same; of 10 MB/s 12 ms are 120 kB, and 100 ms 1 MB; of 1 GB/s it is over the limit.
        (300e3, 0.001, CHUNK_BYTES, CHUNK_BYTES),
        (300e3, 0.150, CHUNK_BYTES, CHUNK_BYTES),
        (10e6, 0.001, CHUNK_BYTES, CHUNK_BYTES),
        (100e6, 0.001, 900_000, 1_500_000),
        (10e6, 0.080, 800_000, 1_300_000),
        (1e9, 0.001, MAX_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_BYTES),
        (1e9, 0.150, 1_000_000, MAX_IN_FLIGHT_BYTES),
    ],
)
def test_in_flight_is_what_keeps_the_link_busy(
    rate: float, delay_s: float, least: int, most: int
) -> None:
    rig = BlobRig(rate=rate, delay_s=delay_s)
    rig.offer(rig.source.put(bytes(24 * 1024 * 1024)))
    rig.run()
    assert least <= rig.most_in_flight <= most


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_to_links_every_blob_arrives(seed: int) -> None:
    chance = random.Random(seed)
    rig = BlobRig(rate=chance.choice([1e6, 20e6, 500e6]), delay_s=chance.choice([1e-4, 0.05]))
    rig.store.slow = False
    blobs: dict[BlobRef, bytes] = {}
    for n in range(chance.randrange(1, 7)):
        data = some_bytes(
            chance.choice([0, 1, 1000, 131_072, 400_000, 900_000]) + n, seed * 100 + n
        )
        blobs[rig.source.put(data)] = data
    rig.offer(*blobs)
    cuts = chance.randrange(6)
    while True:
        for _ in range(chance.randrange(1, 40)):
            rig.step()
        if not cuts:
            break
        cuts -= 1
        rig.cut()
        rig.offer(*chance.sample(list(blobs), len(blobs)))
    rig.run()
    assert not [o for o in rig.outcomes if o.failed], f"seed {seed}"
    assert rig.store.data == {blob.sha256: data for blob, data in blobs.items()}
    assert not rig.store.partials
