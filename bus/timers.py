"""What is due when, in a sans-IO core whose driver says what time it is.

`Timers` has callbacks, and any of them may be cancelled. `Wakeups` has one time for each of many
keys, most of which are put off again and again.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

#: Cancelled timers may lie in the heap until they are due, but not be most of it.
SPARE_ENTRIES = 64


class Timers:
    """A heap of callbacks by due time. Time is whatever `now` the owner hands in."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._callbacks: dict[int, Callable[[float], None]] = {}
        self._numbers = itertools.count(1)

    def at(self, when: float, callback: Callable[[float], None]) -> int:
        """Call `callback(now)` once `when` has come; returns a handle for `cancel`."""
        handle = next(self._numbers)
        self._callbacks[handle] = callback
        heapq.heappush(self._heap, (when, handle))
        return handle

    def cancel(self, handle: int | None) -> None:
        """Forget a timer; fine when it fired already or is None."""
        if handle is None or self._callbacks.pop(handle, None) is None:
            return
        if len(self._heap) > 2 * len(self._callbacks) + SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[1] in self._callbacks]
            heapq.heapify(self._heap)

    def next_timeout(self) -> float | None:
        """When the earliest timer is due."""
        while self._heap and self._heap[0][1] not in self._callbacks:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def fire(self, now: float) -> None:
        """Run all that are due; ones that these add for now run in the next call."""
        due = []
        while (when := self.next_timeout()) is not None and when <= now:
            handle = heapq.heappop(self._heap)[1]
            due.append(self._callbacks.pop(handle))
        for callback in due:
            callback(now)


class Wakeups:
    """The earliest time by key.

    A time that moved later is noticed when the earlier one comes, so those that are put off with
    every frame cost nothing.
    """

    def __init__(self) -> None:
        self._at: dict[bytes, float] = {}
        self._heap: list[tuple[float, bytes]] = []

    def plan(self, key: bytes, when: float | None) -> None:
        """Wake `key` at `when` or earlier; None: not at all."""
        if when is None:
            self._at.pop(key, None)
        elif when < self._at.get(key, float("inf")):
            self._at[key] = when
            heapq.heappush(self._heap, (when, key))

    def next(self) -> float | None:
        """When `due` gives something."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[bytes]:
        """Whose time has come; each has to be planned again."""
        found = []
        while (when := self.next()) is not None and when <= now:
            key = heapq.heappop(self._heap)[1]
            del self._at[key]
            found.append(key)
        return found
