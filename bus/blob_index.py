"""Which blobs a store has, least recently used first, and what of its budget is taken. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from bus.errors import StorageFull, TooLarge


class BlobIndex:
    """Owned by a store. Invariant: `used_bytes` is the kept and the reserved, at most the budget.

    Args:
        budget_bytes: what all blobs together may have, those that are being received too.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._lengths: OrderedDict[bytes, int] = OrderedDict()
        self._kept_bytes = 0
        self._reserved_bytes = 0

    def __contains__(self, sha256: bytes) -> bool:
        return sha256 in self._lengths

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def used_bytes(self) -> int:
        return self._kept_bytes + self._reserved_bytes

    def use(self, sha256: bytes) -> int | None:
        """The length of a blob, which is now the one used last; None when it is not here."""
        length = self._lengths.get(sha256)
        if length is not None:
            self._lengths.move_to_end(sha256)
        return length

    def reserve(self, length: int, in_use: Collection[bytes] = ()) -> list[bytes]:
        """Take room for a blob; gives the blobs that have to go for it, all or none.

        Raises:
            TooLarge: it is longer than the whole budget.
            StorageFull: what would have to go is in use.
        """
        if length > self.budget_bytes:
            raise TooLarge(
                f"a file of {length} bytes is over the budget of {self.budget_bytes} bytes for "
                "all files; raise blobs.budget_bytes there"
            )
        going: list[bytes] = []
        missing = self.used_bytes + length - self.budget_bytes
        for sha256, size in self._lengths.items():
            if missing <= 0:
                break
            if sha256 not in in_use:
                going.append(sha256)
                missing -= size
        if missing > 0:
            raise StorageFull(
                f"the files in use leave no room for {length} bytes more in the budget of "
                f"{self.budget_bytes}; wait until requests have ended, or raise "
                "blobs.budget_bytes there"
            )
        for sha256 in going:
            self.remove(sha256)
        self._reserved_bytes += length
        return going

    def release(self, length: int) -> None:
        """Give back the room of a blob that is not kept."""
        self._reserved_bytes -= length

    def add(self, sha256: bytes, length: int) -> None:
        """A blob is kept, and used last."""
        self.remove(sha256)
        self._lengths[sha256] = length
        self._kept_bytes += length

    def remove(self, sha256: bytes) -> None:
        """Forget a blob; fine when it is not here."""
        self._kept_bytes -= self._lengths.pop(sha256, 0)
