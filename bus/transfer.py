"""What both sides of a blob's transfer share: its course, its limits, and the store behind it.

    sender    XferBegin ─▶       ─▶ XferChunk ... ─▶ XferEnd ─▶
    receiver            XferCredit ─▶  XferCredit ...          XferDone (ok, have or error)

Nothing of a blob goes before the first credit, which names the offset to start at: what came over
a link that was lost is not sent again. `XferDone` ok comes once the hash matched and the blob is
on disk. Whatever goes wrong with a transfer ends that transfer and never the link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bus.errors import SuperfluidError
from bus.messages.parts import BlobRef

if TYPE_CHECKING:
    from hashlib import _Hash

#: Bytes of one chunk: what a heartbeat may have to wait behind. With its message's own 25 bytes it
#: fits in one frame (bus/frames.py).
CHUNK_BYTES = 128 * 1024 - 32
#: The most that may be on its way on one link.
MAX_IN_FLIGHT_BYTES = 2 * 1024 * 1024
#: What a request names is at most this long; the other kinds are not taken yet.
MAX_REQUEST_BYTES = 1024 * 1024 * 1024
#: Transfers of one link that may have begun and not ended.
MAX_TRANSFERS = 16
SHA256_BYTES = 32
#: Code of a blob whose bytes have another hash than its name; the others are of bus/errors.py.
HASH_MISMATCH = "hash_mismatch"


@dataclass(slots=True, eq=False)
class Partial:
    """A blob that is being received; what it has so far is also in its store.

    Its hash is kept as it grows, so that nothing is read again when a transfer is taken up.
    """

    blob: BlobRef
    number: int
    received: int = 0
    hash: _Hash = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        """Count bytes that the store has taken."""
        self.received += len(data)
        self.hash.update(data)

    @property
    def matches(self) -> bool:
        """Whether it is whole and has the hash that is its name."""
        return self.received == self.blob.length and self.hash.digest() == self.blob.sha256


@dataclass(frozen=True, slots=True)
class Settled:
    """A partial that `keep` was asked for: on disk under its hash now, or why not."""

    partial: Partial
    error: SuperfluidError | None = None


class BlobStore(Protocol):
    """Blobs by hash, within a budget. Errors leave it as it was, without the partial."""

    def length(self, sha256: bytes) -> int | None:
        """The length of a blob that it has; asking counts as using it."""

    def begin(self, blob: BlobRef, in_use: Collection[bytes]) -> Partial:
        """Make room and begin a blob.

        Args:
            in_use: hashes that must stay.

        Raises:
            TooLarge: longer than the whole budget.
            StorageFull: what would have to go is in use, or the disk is full.
        """

    def write(self, partial: Partial, data: bytes) -> None:
        """Append to a blob.

        Raises:
            StorageFull: the disk does not take it.
        """

    def keep(self, partial: Partial) -> None:
        """Begin to put a whole blob on disk under its name; `settled` says when it is."""

    def drop(self, partial: Partial) -> None:
        """Give up a blob."""

    def settled(self) -> list[Settled]:
        """What `keep` has brought since the last call."""

    def read(self, sha256: bytes, offset: int, size: int) -> bytes:
        """Bytes of a blob.

        Raises:
            BlobMissing: it is not there any more, or can not be read.
        """

    def remove(self, sha256: bytes) -> None:
        """Forget a blob; fine when it is not there."""


def name_of(sha256: bytes) -> str:
    """A blob's name for people."""
    return f"file {sha256.hex()[:16]}"
