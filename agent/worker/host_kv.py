"""Keys and values of lanes in host memory, by entry id: prefixes and preempted lanes alike.

What is kept, and what must go, is decided by `prefix_cache.PrefixCache`; this does what it says
and refuses what would break the budget, so that a wrong account is found where it is made.
"""

from __future__ import annotations

from agent.worker.kv_cache import KvSlab, SavedLane
from bus.errors import Internal


class HostKv:
    """Owns saved lanes. One thread drives it, in the order of the scheduler's operations.

    Invariant: `nbytes` is the sum over all entries and at most `budget_bytes`.

    Args:
        budget_bytes: of all entries together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        #: Bytes of all entries.
        self.nbytes = 0
        self._saved: dict[int, SavedLane] = {}

    def save(self, entry: int, slab: KvSlab, lane: int, tokens: int) -> int:
        """Keep a copy of a lane's first tokens.

        Args:
            entry: an id that is not in use.
            slab: where the lane is.
            lane: row of the slab.
            tokens: 1 to the lane's length.

        Returns:
            Bytes that it takes: `tokens * slab.layout.token_bytes`.

        Raises:
            Internal: the id is in use, the budget is used up, or there is no such stretch.
        """
        self._check_room(entry, tokens * slab.layout.token_bytes)
        return self.put(entry, slab.read_lane(lane, tokens))

    def put(self, entry: int, saved: SavedLane) -> int:
        """Keep a lane that was saved elsewhere, as `save` does; it is not copied."""
        self._check_room(entry, saved.nbytes)
        self._saved[entry] = saved
        self.nbytes += saved.nbytes
        return saved.nbytes

    def load(self, entry: int, slab: KvSlab, lane: int, tokens: int) -> None:
        """Write the first tokens of an entry into a lane, bit by bit; the entry stays.

        Args:
            entry: its id.
            slab: where the lane is; its layout is that of the slab it was saved from.
            lane: row of the slab.
            tokens: 1 to the tokens saved.

        Raises:
            Internal: there is no such entry, or the layouts differ.
        """
        slab.write_lane(lane, self.get(entry), tokens)

    def get(self, entry: int) -> SavedLane:
        """An entry's keys and values, which stay the cache's own.

        Raises:
            Internal: there is no such entry.
        """
        saved = self._saved.get(entry)
        if saved is None:
            raise Internal(f"there is no saved lane {entry}")
        return saved

    def drop(self, entry: int) -> None:
        """Free an entry.

        Raises:
            Internal: there is no such entry.
        """
        self.nbytes -= self.get(entry).nbytes
        del self._saved[entry]

    def entries(self) -> frozenset[int]:
        """Ids of all entries."""
        return frozenset(self._saved)

    def _check_room(self, entry: int, nbytes: int) -> None:
        if entry in self._saved:
            raise Internal(f"saved lane {entry} exists already")
        if self.nbytes + nbytes > self.budget_bytes:
            raise Internal(
                f"saved lane {entry} of {nbytes} bytes does not fit: {self.nbytes} of "
                f"{self.budget_bytes} bytes are used"
            )
