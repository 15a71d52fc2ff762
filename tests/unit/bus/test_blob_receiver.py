"""A receiver of blobs and senders that break the rules: the transfer ends, never anything else."""

from __future__ import annotations

from typing import Any

import pytest

from bus.blob_receiver import MAX_RESTING
from bus.messages.link_transfers import (
    XferAbort,
    XferBegin,
    XferChunk,
    XferCredit,
    XferDone,
    XferEnd,
)
from bus.messages.parts import BlobRef
from bus.transfer import MAX_IN_FLIGHT_BYTES, MAX_REQUEST_BYTES, MAX_TRANSFERS
from tests.harness.blob_rig import BlobRig, blob_of, some_bytes

DATA = some_bytes(300_000)
BLOB = blob_of(DATA)


def begin(transfer: int = 1, blob: BlobRef = BLOB, kind: str = "request") -> XferBegin:
    return XferBegin(transfer=transfer, kind=kind, blob=blob)


def chunk(start: int, end: int, transfer: int = 1, data: bytes = DATA) -> XferChunk:
    return XferChunk(transfer=transfer, offset=start, data=data[start:end])


def only_error(answers: list[Any], code: str) -> XferDone:
    (done,) = [answer for answer in answers if isinstance(answer, XferDone)]
    assert (done.result, done.code) == ("error", code)
    assert done.message
    return done


def test_the_first_credit_names_the_start_and_how_far() -> None:
    rig = BlobRig()
    assert rig.inject(begin()) == [XferCredit(transfer=1, offset=0, limit=300_000)]
    assert rig.inject(chunk(0, 100_000)) == [XferCredit(transfer=1, offset=100_000, limit=300_000)]
    large = BlobRef(sha256=bytes(32), length=10 * MAX_IN_FLIGHT_BYTES)
    assert rig.inject(begin(2, large)) == [
        XferCredit(transfer=2, offset=0, limit=MAX_IN_FLIGHT_BYTES)
    ]


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([chunk(100, 200)], "invalid"),
        ([chunk(0, 100), chunk(0, 100)], "invalid"),
        ([chunk(0, 100), chunk(200, 300)], "invalid"),
        ([XferChunk(transfer=1, offset=0, data=b"")], "invalid"),
        ([XferChunk(transfer=1, offset=0, data=DATA[:131_072]), XferEnd(transfer=1)], "invalid"),
        ([XferEnd(transfer=1)], "invalid"),
    ],
    ids=["ahead", "repeated", "gap", "empty", "short", "nothing"],
)
def test_a_broken_transfer_ends_alone(messages: list[object], code: str) -> None:
    rig = BlobRig()
    rig.inject(begin())
    only_error(rig.inject(*messages), code)
    assert not rig.store.partials
    assert rig.store.index.used_bytes == 0
    # Its chunks that are still on their way are passed over, and the next transfer is sound.
    assert rig.inject(chunk(200, 300), XferEnd(transfer=1)) == []
    assert rig.receiver.passed_over == 2
    rig.inject(begin(2), chunk(0, 131_072, 2), chunk(131_072, 262_144, 2))
    answers = rig.inject(chunk(262_144, 300_000, 2), XferEnd(transfer=2))
    assert answers[-1] == XferDone(transfer=2, sha256=BLOB.sha256, result="ok")


def test_a_chunk_beyond_the_credit_ends_the_transfer() -> None:
    rig = BlobRig()
    rig.inject(begin(1, BlobRef(sha256=bytes(32), length=10)))
    done = only_error(rig.inject(XferChunk(transfer=1, offset=0, data=bytes(11))), "invalid")
    assert done.message == "a chunk up to 11; bytes up to 10 were asked for"


def test_a_wrong_hash_is_told_and_nothing_is_kept() -> None:
    rig = BlobRig()
    rig.inject(begin(1, BlobRef(sha256=bytes(32), length=100)))
    done = only_error(rig.inject(chunk(0, 100), XferEnd(transfer=1)), "hash_mismatch")
    assert done.sha256 == bytes(32)
    assert not rig.store.data
    assert not rig.store.partials


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (begin(1, BlobRef(sha256=bytes(31), length=10)), "invalid"),
        (begin(1, BlobRef(sha256=bytes(32), length=MAX_REQUEST_BYTES + 1)), "too_large"),
        (begin(1, BlobRef(sha256=bytes(32), length=10), "model"), "invalid"),
    ],
    ids=["hash", "length", "kind"],
)
def test_what_can_not_be_taken_is_refused_at_the_begin(message: XferBegin, code: str) -> None:
    rig = BlobRig()
    only_error(rig.inject(message), code)
    assert not rig.store.partials


def test_a_length_that_is_not_the_blob_s_is_refused() -> None:
    rig = BlobRig()
    rig.store.put(DATA)
    wrong = BlobRef(sha256=BLOB.sha256, length=5)
    assert "300000 bytes, not 5" in only_error(rig.inject(begin(1, wrong)), "invalid").message
    rig = BlobRig()
    rig.inject(begin())
    only_error(rig.inject(begin(2, wrong)), "invalid")


def test_no_more_transfers_than_may_run() -> None:
    rig = BlobRig()
    for number in range(MAX_TRANSFERS):
        blob = BlobRef(sha256=bytes([number]) * 32, length=10)
        assert isinstance(rig.inject(begin(number, blob))[0], XferCredit)
    only_error(rig.inject(begin(99)), "queue_full")
    rig.inject(XferAbort(transfer=3, reason="cancelled"))
    assert isinstance(rig.inject(begin(99))[0], XferCredit)


def test_what_rests_is_bounded() -> None:
    rig = BlobRig()
    for number in range(MAX_RESTING + 5):
        rig.inject(begin(number, BlobRef(sha256=bytes([number]) * 32, length=10)))
        rig.now += 1.0
        rig.receiver.link_down(rig.now)
    assert len(rig.store.partials) == MAX_RESTING
    assert rig.store.index.used_bytes == 10 * MAX_RESTING


def test_a_second_transfer_of_a_hash_waits_and_is_answered_with_the_first() -> None:
    rig = BlobRig()
    rig.inject(begin(1))
    assert rig.inject(begin(2)) == []
    rig.inject(chunk(0, 131_072), chunk(131_072, 262_144), chunk(262_144, 300_000))
    assert rig.inject(XferEnd(transfer=1)) == [
        XferDone(transfer=1, sha256=BLOB.sha256, result="ok"),
        XferDone(transfer=2, sha256=BLOB.sha256, result="ok"),
    ]


def test_a_second_transfer_goes_on_where_the_first_was_given_up() -> None:
    rig = BlobRig()
    rig.inject(begin(1), begin(2), chunk(0, 1000))
    assert rig.inject(XferAbort(transfer=1, reason="cancelled")) == [
        XferCredit(transfer=2, offset=1000, limit=300_000)
    ]


def test_a_waiting_transfer_that_sends_ends_alone() -> None:
    rig = BlobRig()
    rig.inject(begin(1), begin(2))
    assert only_error(rig.inject(chunk(0, 1000, 2)), "invalid").transfer == 2
    assert isinstance(rig.inject(chunk(0, 1000))[0], XferCredit)


def test_a_number_that_is_begun_twice_ends() -> None:
    rig = BlobRig()
    rig.inject(begin(1))
    only_error(rig.inject(begin(1)), "invalid")
    # What it brought rests for a transfer with a number of its own.
    assert rig.inject(begin(2)) == [XferCredit(transfer=2, offset=0, limit=300_000)]


def test_messages_about_nothing_are_passed_over() -> None:
    rig = BlobRig()
    answers = rig.inject(
        chunk(0, 10, 7), XferEnd(transfer=7), XferAbort(transfer=7, reason="cancelled")
    )
    assert answers == []
    assert rig.receiver.passed_over == 3
    assert not rig.receiver.receive(XferDone(transfer=7, sha256=b"", result="ok"), 0.0)


def test_a_transfer_that_ends_while_its_blob_is_put_on_disk_is_told() -> None:
    rig = BlobRig()
    rig.store.slow = True
    small = blob_of(b"abc")
    rig.inject(begin(1, small), XferChunk(transfer=1, offset=0, data=b"abc"))
    assert rig.inject(XferEnd(transfer=1)) == []
    # The end again: that transfer broke the rules; the blob is kept all the same.
    only_error(rig.inject(XferEnd(transfer=1)), "invalid")
    assert rig.inject(begin(2, small)) == []
    rig.store.sync()
    assert rig.inject() == [XferDone(transfer=2, sha256=small.sha256, result="ok")]
