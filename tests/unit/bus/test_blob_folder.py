"""Blobs as files: names, modes, what stays over a start, what goes, and disks that take no more."""

from __future__ import annotations

import hashlib
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.blob_folder import BlobFolder
from bus.blob_index import BlobIndex
from bus.errors import BlobMissing, StartError, StorageFull, TooLarge
from bus.messages.parts import BlobRef
from bus.transfer import Partial, Settled
from tests.harness.blob_rig import blob_of, some_bytes

#: SHA-256 of "abc" (FIPS 180-4, example B.1).
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[BlobFolder]:
    with BlobFolder(tmp_path / "blobs", 1000, min_free_bytes=0) as made:
        yield made


def take(folder: BlobFolder, data: bytes, in_use: tuple[bytes, ...] = ()) -> BlobRef:
    """Put a blob in and wait until it is on disk."""
    blob = blob_of(data)
    partial = folder.begin(blob, in_use)
    folder.write(partial, data)
    assert partial.matches
    folder.keep(partial)
    assert wait(folder) == [Settled(partial)]
    return blob


def wait(folder: BlobFolder) -> list[Settled]:
    found: list[Settled] = []
    while not found:
        assert select.select([folder], [], [], 10.0)[0]
        found = folder.settled()
    return found


def test_a_blob_is_a_private_file_named_by_its_hash(folder: BlobFolder, tmp_path: Path) -> None:
    partial = folder.begin(blob_of(b"abc"), ())
    folder.write(partial, b"a")
    folder.write(partial, b"bc")
    (part,) = (tmp_path / "blobs").iterdir()
    assert part.name == f"{ABC}.1.part"
    assert folder.length(bytes.fromhex(ABC)) is None
    folder.keep(partial)
    wait(folder)
    (file,) = (tmp_path / "blobs").iterdir()
    assert file == folder.file_of(bytes.fromhex(ABC))
    assert (file.name, file.read_bytes()) == (ABC, b"abc")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert folder.length(bytes.fromhex(ABC)) == 3
    assert folder.read(bytes.fromhex(ABC), 1, 10) == b"bc"


def test_whole_files_stay_over_a_start_and_parts_do_not(tmp_path: Path) -> None:
    path = tmp_path / "blobs"
    with BlobFolder(path, 1000, min_free_bytes=0) as first:
        blob = take(first, b"abc")
        first.write(first.begin(blob_of(b"unfinished"), ()), b"unfin")
    (path / "notes.txt").write_text("not a blob")
    with BlobFolder(path, 1000, min_free_bytes=0) as second:
        assert second.length(blob.sha256) == 3
        assert second.used_bytes == 3
    assert sorted(p.name for p in path.iterdir()) == [ABC, "notes.txt"]


def test_a_start_with_a_smaller_budget_keeps_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "blobs"
    with BlobFolder(path, 1000, min_free_bytes=0) as first:
        blobs = [take(first, some_bytes(100, n)) for n in range(3)]
        for age, blob in zip((30, 20, 10), blobs, strict=True):
            os.utime(first.file_of(blob.sha256), (1e9 - age, 1e9 - age))
    with BlobFolder(path, 250, min_free_bytes=0) as second:
        assert [second.length(b.sha256) for b in blobs] == [None, 100, 100]
    assert len(list(path.iterdir())) == 2


def test_least_recently_used_files_make_room(folder: BlobFolder, tmp_path: Path) -> None:
    first, second, third = (take(folder, some_bytes(300, n)) for n in range(3))
    folder.read(first.sha256, 0, 1)
    take(folder, some_bytes(400, 9), in_use=(third.sha256,))
    # `second` was used least recently, but 100 + 300 bytes are less than 400 without it.
    assert folder.length(second.sha256) is None
    assert folder.length(first.sha256) == 300
    assert folder.length(third.sha256) == 300
    assert not folder.file_of(second.sha256).exists()
    with pytest.raises(BlobMissing):
        folder.read(second.sha256, 0, 1)


def test_a_blob_that_came_twice_is_one_file(folder: BlobFolder, tmp_path: Path) -> None:
    blob = blob_of(b"abc")
    both = [folder.begin(blob, ()) for _ in range(2)]
    for partial in both:
        folder.write(partial, b"abc")
        folder.keep(partial)
    assert {settled.partial.number for settled in wait(folder)} == {1, 2}
    third = folder.begin(blob, ())
    folder.write(third, b"abc")
    folder.keep(third)
    assert wait(folder) == [Settled(third)]
    assert folder.used_bytes == 3
    folder.remove(blob.sha256)
    take(folder, b"abc")
    assert [p.name for p in (tmp_path / "blobs").iterdir()] == [ABC]


def test_dropping_gives_the_room_back(folder: BlobFolder, tmp_path: Path) -> None:
    partial = folder.begin(blob_of(some_bytes(900)), ())
    folder.write(partial, b"some")
    assert folder.used_bytes == 900
    folder.drop(partial)
    folder.drop(partial)
    assert folder.used_bytes == 0
    take(folder, b"abc")  # Whatever was to be unlinked is unlinked by now.
    assert [p.name for p in (tmp_path / "blobs").iterdir()] == [ABC]


def test_a_disk_without_room_is_refused_at_the_begin(tmp_path: Path) -> None:
    with BlobFolder(tmp_path / "blobs", 1 << 62, min_free_bytes=0) as folder:
        with pytest.raises(StorageFull, match="bytes free"):
            folder.begin(BlobRef(sha256=bytes(32), length=1 << 61), ())
        assert folder.used_bytes == 0


def test_a_write_that_fails_drops_the_blob(tmp_path: Path) -> None:
    with BlobFolder(tmp_path / "blobs", 1000, min_free_bytes=0) as folder:
        partial = folder.begin(blob_of(b"abc"), ())
        # A descriptor that takes no writes stands in for a disk that takes none.
        unwritable = os.open(os.devnull, os.O_RDONLY)
        os.dup2(unwritable, folder._files[partial.number])
        os.close(unwritable)
        with pytest.raises(StorageFull, match="can not be kept"):
            folder.write(partial, b"abc")
        assert folder.used_bytes == 0


def test_a_blob_that_can_not_be_renamed_is_told(tmp_path: Path) -> None:
    with BlobFolder(tmp_path / "blobs", 1000, min_free_bytes=0) as folder:
        blob = blob_of(b"abc")
        partial = folder.begin(blob, ())
        folder.write(partial, b"abc")
        folder.file_of(blob.sha256).mkdir()
        folder.keep(partial)
        (settled,) = wait(folder)
        assert isinstance(settled.error, StorageFull)
        assert folder.length(blob.sha256) is None
        assert folder.used_bytes == 0


def test_a_file_that_somebody_removed_is_missing_from_then_on(folder: BlobFolder) -> None:
    blob = take(folder, b"abc")
    folder.file_of(blob.sha256).unlink()
    with pytest.raises(BlobMissing):
        folder.read(blob.sha256, 0, 3)
    assert folder.length(blob.sha256) is None
    assert folder.used_bytes == 0


def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "blobs"
    path.mkdir(mode=0o755)
    with pytest.raises(StartError, match="chmod 700"):
        BlobFolder(path, 1000)


def test_the_hash_grows_with_the_blob() -> None:
    data = some_bytes(1000)
    partial = Partial(blob_of(data), 1)
    partial.add(data[:400])
    assert not partial.matches
    partial.add(data[400:])
    assert partial.hash.digest() == hashlib.sha256(data).digest()
    assert partial.matches


# --- the index -------------------------------------------------------------------------------


def test_a_reservation_takes_all_it_needs_or_nothing() -> None:
    index = BlobIndex(100)
    for name in (b"a", b"b", b"c"):
        index.add(name, 30)
    with pytest.raises(StorageFull):
        index.reserve(80, {b"b"})
    assert (len(index), index.used_bytes) == (3, 90)
    assert index.reserve(10) == []
    assert index.reserve(30) == [b"a"]
    assert index.used_bytes == 100
    index.release(40)
    assert index.used_bytes == 60
    with pytest.raises(TooLarge):
        index.reserve(101)
