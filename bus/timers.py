"""Timers of a sans-IO core: callbacks at a time, fired when the driver says that it has come."""

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
