"""When each of many things wants to be woken, where most times only ever move later."""

from __future__ import annotations

import heapq


class Wakeups:
    """The earliest time by key. A time that moved later is noticed when the earlier one comes, so
    the many that are put off with every frame cost nothing.
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
