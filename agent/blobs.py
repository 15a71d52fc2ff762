"""The files that requests bring to this node: received, kept within a budget, given to workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Protocol

from bus.blob_receiver import BlobReceiver
from bus.errors import BlobMissing
from bus.messages.parts import BlobRef
from bus.transfer import BlobStore, name_of

#: Of a node's folder.
FOLDER = "blobs"


class NodeBlobStore(BlobStore, Protocol):
    """A store whose blobs a worker can open."""

    @property
    def budget_bytes(self) -> int:
        """What all blobs may have together."""

    def file_of(self, sha256: bytes) -> Path:
        """Where a blob is, if it is here."""


class NodeBlobs:
    """Owned by the node's core.

    Args:
        store: where they are kept.
        in_use: gives the hashes that running generations name; these stay.
    """

    def __init__(self, store: NodeBlobStore, in_use: Callable[[], Collection[bytes]]) -> None:
        self._store = store
        self._receiver = BlobReceiver(store, in_use)

    @property
    def budget_bytes(self) -> int:
        return self._store.budget_bytes

    def receive(self, message: object, now: float) -> bool:
        """Take a message of the head; False when it is not about blobs."""
        return self._receiver.receive(message, now)

    def messages(self) -> list[object]:
        """What the head is to be told, in order."""
        return self._receiver.messages()

    def settle(self) -> None:
        """The store may have put blobs on disk."""
        self._receiver.settle()

    def link_down(self, now: float) -> None:
        """The link is gone; what came of its transfers waits for the next one."""
        self._receiver.link_down(now)

    def files_of(self, blobs: Iterable[BlobRef]) -> tuple[str, ...]:
        """The files of a request, in its order.

        Raises:
            BlobMissing: one is not here; it was evicted, or did not come.
        """
        files = []
        for blob in blobs:
            if self._store.length(blob.sha256) != blob.length:
                raise BlobMissing(
                    f"{name_of(blob.sha256)} is not on this node (any more); send it again, and "
                    "raise blobs.budget_bytes there if that happens often"
                )
            files.append(str(self._store.file_of(blob.sha256)))
        return tuple(files)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due (seconds), or None."""
        return self._receiver.next_timeout()

    def handle_timeout(self, now: float) -> None:
        """Forget what lost links left long ago."""
        self._receiver.handle_timeout(now)

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        self._receiver.validate_state()
