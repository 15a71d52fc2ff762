"""Blobs as files of one folder, named by their SHA-256 and by nothing that came over a wire.

    <sha256 in hex>         whole, its hash verified, on disk        0600
    <sha256 in hex>.N.part  being received; removed at the next start

A process that opens the folder keeps what an earlier one left whole, the oldest first to go.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from itertools import count
from pathlib import Path

from bus.blob_index import BlobIndex
from bus.closing import Closing
from bus.errors import BlobMissing, StartError, StorageFull
from bus.file_thread import FileThread
from bus.messages.parts import BlobRef
from bus.state import private_folder
from bus.transfer import Partial, Settled, name_of

_WHOLE = re.compile(r"[0-9a-f]{64}")
_PARTIAL = re.compile(r"[0-9a-f]{64}\.[0-9]+\.part")
#: What stays free on the disk for everything else.
MIN_FREE_BYTES = 64 * 1024 * 1024


class BlobFolder(Closing):
    """A `BlobStore` on disk. One process per folder; its owner's thread calls everything.

    Reading, writing and hashing 128 KiB take some 0.15 ms together, so the loop does them. What
    can take seconds (fsync, the unlink of a large file) is done by a thread: watch `fileno`, then
    take `settled`.

    Args:
        path: made 0700 when missing.
        budget_bytes: what all blobs may have together.

    Raises:
        StartError: the folder can not be used, or others can enter it.
    """

    def __init__(
        self, path: Path, budget_bytes: int, *, min_free_bytes: int = MIN_FREE_BYTES
    ) -> None:
        self.path = private_folder(path)
        self._min_free_bytes = min_free_bytes
        self._index = BlobIndex(budget_bytes)
        self._numbers = count(1)
        self._files: dict[int, int] = {}
        #: By hash, those that become one file; of the first it is made.
        self._keeping: dict[bytes, list[Partial]] = {}
        self._settled: list[Settled] = []
        self._thread = FileThread("blob-files")
        try:
            self._take_over()
        except OSError as error:
            self.close()
            raise StartError(f"can not use the folder {path}: {error.strerror}") from error

    @property
    def budget_bytes(self) -> int:
        return self._index.budget_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of its blobs, and those reserved for the ones that are being received."""
        return self._index.used_bytes

    def fileno(self) -> int:
        """Becomes readable when `settled` has news."""
        return self._thread.fileno()

    def file_of(self, sha256: bytes) -> Path:
        """Where a blob is, if it is here."""
        return self.path / sha256.hex()

    def length(self, sha256: bytes) -> int | None:
        return self._index.use(sha256)

    def begin(self, blob: BlobRef, in_use: Collection[bytes]) -> Partial:
        for sha256 in self._index.reserve(blob.length, in_use):
            self._unlink(self.file_of(sha256))
        made = Partial(blob, next(self._numbers))
        try:
            self._check_free(blob.length)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._files[made.number] = os.open(self._part(made), flags, 0o600)
        except OSError as error:
            self._index.release(blob.length)
            raise self._full(error) from error
        except StorageFull:
            self._index.release(blob.length)
            raise
        return made

    def write(self, partial: Partial, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._files[partial.number], left) :]
        except OSError as error:
            self.drop(partial)
            raise self._full(error) from error
        partial.add(data)

    def keep(self, partial: Partial) -> None:
        sha256 = partial.blob.sha256
        if sha256 in self._index or sha256 in self._keeping:
            self.drop(partial)
            self._keeping.setdefault(sha256, []).append(partial)
            if sha256 in self._index:
                self._thread.submit(lambda: None, lambda error: self._settle(sha256, error))
            return
        self._keeping[sha256] = [partial]
        descriptor = self._files.pop(partial.number)
        part, whole = self._part(partial), self.file_of(sha256)

        def work() -> None:
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(part, whole)
            _sync_folder(self.path)

        self._thread.submit(work, lambda error: self._kept(partial, error))

    def drop(self, partial: Partial) -> None:
        descriptor = self._files.pop(partial.number, None)
        if descriptor is not None:
            os.close(descriptor)
            self._unlink(self._part(partial))
            self._index.release(partial.blob.length)

    def settled(self) -> list[Settled]:
        self._thread.finish()
        taken, self._settled = self._settled, []
        return taken

    def read(self, sha256: bytes, offset: int, size: int) -> bytes:
        if self._index.use(sha256) is None:
            raise BlobMissing(f"{name_of(sha256)} is not here any more; send it again")
        try:
            descriptor = os.open(self.file_of(sha256), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return os.pread(descriptor, size, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._index.remove(sha256)
            raise BlobMissing(
                f"{name_of(sha256)} can not be read ({error.strerror}); send it again"
            ) from error

    def remove(self, sha256: bytes) -> None:
        if sha256 in self._index:
            self._index.remove(sha256)
            self._unlink(self.file_of(sha256))

    def close(self) -> None:
        """Drop what is not whole and end the thread. May be called again."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self._thread.close()

    # --- inside -------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Take what an earlier process left, and remove what is not whole."""
        found: list[tuple[int, bytes, int]] = []
        for entry in os.scandir(self.path):
            if _PARTIAL.fullmatch(entry.name):
                os.unlink(entry.path)
            elif _WHOLE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime_ns, bytes.fromhex(entry.name), status.st_size))
        # The newest stay: what no longer fits goes.
        for _, sha256, length in sorted(found, reverse=True):
            if self._index.used_bytes + length > self._index.budget_bytes:
                os.unlink(self.file_of(sha256))
            else:
                self._index.add(sha256, length)
        for _, sha256, _ in sorted(found):
            self._index.use(sha256)

    def _kept(self, partial: Partial, error: OSError | None) -> None:
        blob = partial.blob
        self._index.release(blob.length)
        if error is None:
            self._index.add(blob.sha256, blob.length)
        else:
            self._unlink(self._part(partial))
        self._settle(blob.sha256, error)

    def _settle(self, sha256: bytes, error: OSError | None) -> None:
        problem = None if error is None else self._full(error)
        self._settled += [Settled(kept, problem) for kept in self._keeping.pop(sha256, [])]

    def _part(self, made: Partial) -> Path:
        return self.path / f"{made.blob.sha256.hex()}.{made.number}.part"

    def _unlink(self, file: Path) -> None:
        # After all earlier work, so that it can not remove what came later under the same name.
        self._thread.submit(lambda: file.unlink(missing_ok=True), lambda error: None)

    def _check_free(self, length: int) -> None:
        status = os.statvfs(self.path)
        free = status.f_bavail * status.f_frsize
        if free < length + self._min_free_bytes:
            raise StorageFull(
                f"the disk of {self.path} has {free} bytes free and a file of {length} bytes is "
                "to be kept; free some space there"
            )

    def _full(self, error: OSError) -> StorageFull:
        return StorageFull(
            f"a file can not be kept in {self.path} ({error.strerror}); see that the disk there "
            "has room and can be written"
        )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
