"""Files that clients put: parts in order, one end once on disk, and all that goes wrong."""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any

import pytest

from bus.blob_folder import BlobFolder
from bus.errors import (
    BlobMissing,
    Invalid,
    RateLimited,
    StorageFull,
    SuperfluidError,
    TooLarge,
)
from bus.ids import RequestId
from bus.messages.api import MAX_BLOB_PART_BYTES, Envelope, PutBlobRequest
from bus.messages.parts import BlobRef
from bus.timers import Timers
from bus.transfer import MAX_REQUEST_BYTES, BlobStore
from head.effects import Reply
from head.operation import ApiRequest
from head.outbox import Outbox
from head.uploads import IDLE_S, MAX_OF_CLIENT, Uploads, find_blobs
from tests.harness.blob_rig import BlobsInMemory, blob_of, some_bytes

ALICE, BOB = b"alice", b"bob"
DATA = some_bytes(500_000)


class Door:
    """Uploads with their store, timers and what they reply."""

    def __init__(self, budget_bytes: int = 1 << 40, store: BlobStore | None = None) -> None:
        self.outbox = Outbox()
        self.store = BlobsInMemory(budget_bytes)
        self.timers = Timers()
        self.in_use: set[bytes] = set()
        kept_in = store or self.store
        self.uploads = Uploads(self.outbox, kept_in, self.timers, lambda: self.in_use)
        self.now = 0.0
        self._number = 0

    def put(
        self,
        part: bytes,
        offset: int = 0,
        client: bytes = ALICE,
        *,
        of: bytes = DATA,
        frames: tuple[bytes, ...] | None = None,
        **keys: Any,
    ) -> list[dict[str, Any]]:
        self._number += 1
        blob = blob_of(of)
        asked = PutBlobRequest(
            sha256=keys.get("sha256", blob.sha256),
            length=keys.get("length", blob.length),
            offset=offset,
        )
        envelope = Envelope(op="put_blob", id=RequestId(str(self._number).encode()))
        request = ApiRequest(client, envelope, {}, (part,) if frames is None else frames)
        self.uploads.put(request, asked, self.now)
        return self.replies()

    def replies(self) -> list[dict[str, Any]]:
        self.uploads.settle()
        tagged = self.outbox.drain().outputs
        return [each.output.body for each in tagged if isinstance(each.output, Reply)]

    def put_all(self, data: bytes, client: bytes = ALICE) -> list[dict[str, Any]]:
        out = []
        for start in range(0, max(len(data), 1), MAX_BLOB_PART_BYTES):
            part = data[start : start + MAX_BLOB_PART_BYTES]
            out += self.put(part, start, of=data, client=client)
        return out


def error_of(door: Door, *args: Any, **keys: Any) -> SuperfluidError:
    with pytest.raises(SuperfluidError) as caught:
        door.put(*args, **keys)
    return caught.value


@pytest.mark.parametrize("length", [0, 1, 262_144, 262_145, 700_000])
def test_parts_become_a_file(length: int) -> None:
    door = Door()
    data = some_bytes(length)
    replies = door.put_all(data)
    assert replies[-1]["kind"] == "end"
    assert (replies[-1]["offset"], replies[-1]["done"]) == (length, True)
    assert [r["done"] for r in replies[:-1]] == [False] * (len(replies) - 1)
    assert door.store.data == {blob_of(data).sha256: data}
    assert len(door.uploads) == 0


def test_the_end_comes_when_it_is_on_disk() -> None:
    door = Door()
    door.store.slow = True
    assert door.put_all(DATA)[-1]["done"] is False
    assert isinstance(error_of(door, b"x", 500_000), Invalid)
    door.store.sync()
    (end,) = door.replies()
    assert (end["offset"], end["done"], end["id"]) == (500_000, True, b"2")


def test_a_file_that_is_there_is_not_taken_again() -> None:
    door = Door()
    door.put_all(DATA)
    assert door.put(DATA[:1000])[0]["done"] is True
    assert len(door.uploads) == 0
    assert error_of(door, DATA[:1000], length=7).param == "length"


def test_a_part_at_the_wrong_offset_leaves_the_upload() -> None:
    door = Door()
    error = error_of(door, DATA[1000:2000], 1000)
    assert (error.param, error.details) == ("offset", {"offset": 0})
    door.put(DATA[:1000])
    assert error_of(door, DATA[:1000], 0).details == {"offset": 1000}
    assert error_of(door, DATA[2000:3000], 2000).details == {"offset": 1000}
    assert door.put(DATA[1000:2000], 1000)[0]["offset"] == 2000


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"frames": ()}, Invalid),
        ({"frames": (b"a", b"b")}, Invalid),
        ({"frames": (bytes(MAX_BLOB_PART_BYTES + 1),)}, TooLarge),
        ({"length": MAX_REQUEST_BYTES + 1}, TooLarge),
        ({"length": 500}, Invalid),
        ({"sha256": bytes(31)}, Invalid),
    ],
    ids=["no frame", "two frames", "long part", "long file", "beyond", "hash"],
)
def test_what_can_not_be_taken_is_refused(keys: dict[str, Any], kind: type[Exception]) -> None:
    assert isinstance(error_of(Door(), DATA[:1000], **keys), kind)


def test_a_file_with_another_hash_is_refused_at_its_end() -> None:
    door = Door()
    error = error_of(door, b"another", sha256=blob_of(b"the one").sha256, length=7)
    assert (error.code, error.param) == ("invalid", "sha256")
    assert not door.store.partials
    assert len(door.uploads) == 0


def test_two_clients_put_the_same_file_side_by_side() -> None:
    door = Door()
    door.put(DATA[:1000], client=ALICE)
    assert door.put_all(DATA, client=BOB)[-1]["done"] is True
    # What Alice still sends is answered with the file that is there.
    assert door.put(DATA[1000:2000], 1000, client=ALICE)[0]["offset"] == 500_000
    assert len(door.uploads) == 0
    assert not door.store.partials
    assert door.store.index.used_bytes == 500_000


@pytest.mark.parametrize("fails", [False, True], ids=["kept", "not kept"])
def test_all_who_finish_the_same_file_are_answered(fails: bool, tmp_path: Path) -> None:
    with BlobFolder(tmp_path / "blobs", 1 << 30) as folder:
        door = Door(store=folder)
        name = folder.file_of(blob_of(DATA).sha256)
        if fails:
            name.mkdir()
        inside: list[BlobRef | SuperfluidError] = []
        for client in (ALICE, BOB):
            door.put(DATA[:262_144], client=client)
        door.uploads.keep(DATA, inside.append)
        replies = [each for who in (ALICE, BOB) for each in door.put(DATA[262_144:], 262_144, who)]
        while len(replies) < 2 or not inside:
            assert select.select([folder], [], [], 10.0)[0]
            replies += door.replies()
        assert len(inside) == 1
        if fails:
            assert {reply["error"]["code"] for reply in replies} == {"storage_full"}
            assert isinstance(inside[0], StorageFull)
            assert folder.used_bytes == 0
        else:
            assert [reply["done"] for reply in replies] == [True, True]
            assert inside == [blob_of(DATA)]
            assert folder.used_bytes == 500_000
            assert name.read_bytes() == DATA
        assert len(door.uploads) == 0
    assert not list(folder.path.glob("*.part"))


def test_a_file_that_was_refused_for_its_hash_may_come_again() -> None:
    door = Door()
    damaged = DATA[:-1] + b"x"
    door.put(damaged[:262_144], of=DATA)
    assert error_of(door, damaged[262_144:], 262_144, of=DATA).param == "sha256"
    assert door.put_all(DATA)[-1]["done"] is True


def test_bytes_inside_a_request_are_kept_once() -> None:
    door = Door()
    kept: list[BlobRef | SuperfluidError] = []
    door.uploads.keep(b"", kept.append)
    door.uploads.keep(DATA, kept.append)
    door.replies()
    door.uploads.keep(DATA, kept.append)
    assert kept == [blob_of(b""), blob_of(DATA), blob_of(DATA)]
    small = Door(budget_bytes=1000)
    small.uploads.keep(DATA, kept.append)
    assert isinstance(kept[-1], TooLarge)
    assert not small.store.partials


def test_an_upload_goes_with_its_connection_and_after_a_minute() -> None:
    door = Door()
    door.put(DATA[:1000], client=ALICE)
    door.put(DATA[:1000], client=BOB)
    door.uploads.client_gone(ALICE)
    assert len(door.store.partials) == 1
    door.timers.fire(IDLE_S - 1)
    assert len(door.store.partials) == 1
    door.timers.fire(IDLE_S + 1)
    assert not door.store.partials
    assert door.store.index.used_bytes == 0
    assert door.timers.next_timeout() is None


def test_a_client_that_left_gets_no_end_and_the_file_stays() -> None:
    door = Door()
    door.store.slow = True
    door.put_all(DATA)
    door.uploads.client_gone(ALICE)
    door.store.sync()
    assert door.replies() == []
    assert door.store.length(blob_of(DATA).sha256) == 500_000


def test_uploads_of_a_connection_are_bounded() -> None:
    door = Door()
    for n in range(MAX_OF_CLIENT):
        door.put(b"a", of=some_bytes(10, n))
    assert isinstance(error_of(door, b"a", of=some_bytes(10, 99)), RateLimited)
    door.put(b"a", of=some_bytes(10, 99), client=BOB)


def test_room_is_made_by_what_no_request_needs() -> None:
    door = Door(budget_bytes=1000)
    needed, old = some_bytes(400, 1), some_bytes(400, 2)
    door.put_all(needed)
    door.put_all(old)
    door.in_use = {blob_of(needed).sha256}
    door.put_all(some_bytes(600, 3))
    assert blob_of(needed).sha256 in door.store.data
    assert blob_of(old).sha256 not in door.store.data
    assert isinstance(error_of(door, b"a", of=some_bytes(601, 4)), StorageFull)
    assert isinstance(error_of(door, b"a", of=some_bytes(1001, 5)), TooLarge)


def test_a_full_disk_ends_the_upload() -> None:
    door = Door()
    door.store.disk_bytes = 1500
    door.put(DATA[:1000])
    assert isinstance(error_of(door, DATA[1000:2000], 1000), StorageFull)
    assert len(door.uploads) == 0
    assert door.store.index.used_bytes == 0


def test_the_files_of_a_request_are_looked_up() -> None:
    store = BlobsInMemory()
    first, second = store.put(b"first"), store.put(b"second")
    assert find_blobs(store, (second.sha256, first.sha256, second.sha256)) == (
        second,
        first,
        second,
    )
    absent = blob_of(b"absent").sha256
    with pytest.raises(BlobMissing) as caught:
        find_blobs(store, (first.sha256, absent))
    assert caught.value.details == {"missing": [absent.hex()]}
    with pytest.raises(Invalid) as refused:
        find_blobs(store, (first.sha256, b"short"))
    assert refused.value.param == "blobs[1]"
