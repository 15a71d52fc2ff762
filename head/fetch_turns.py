"""Whose turn it is to be asked for a tokenizer: few nodes at once, and each for one at a time.

A node that answers nothing holds up its own models alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from bus.ids import NodeIdentity

T = TypeVar("T")

#: Fetches at once: each has what came of its bytes in memory.
MAX_AT_ONCE = 4


class FetchTurns(Generic[T]):
    """Owned by the desk of tokenizers. Fetches are told apart by identity or equality.

    Args:
        begin: asks a node; the fetch may leave before it returns.
    """

    def __init__(self, begin: Callable[[T, float], None]) -> None:
        self._begin = begin
        #: Who waits, the oldest first, and whose turn it is.
        self._line: dict[T, NodeIdentity] = {}
        self._asking: dict[T, NodeIdentity] = {}
        #: In the order in which nodes were asked last.
        self._last_turn: dict[NodeIdentity, int] = {}
        self._turns = 0
        self._is_choosing = False

    def join(self, fetch: T, node: NodeIdentity, now: float) -> None:
        """A fetch wants its turn with a node, which may come before this returns."""
        self._line[fetch] = node
        self._next(now)

    def leave(self, fetch: T, now: float) -> None:
        """A fetch needs its turn no more; fine when it had none."""
        self._line.pop(fetch, None)
        if self._asking.pop(fetch, None) is not None:
            self._next(now)

    def waits(self, fetch: T) -> bool:
        return fetch in self._line

    def has_turn(self, fetch: T) -> bool:
        return fetch in self._asking

    def load(self, node: NodeIdentity) -> int:
        """How many fetches a node has, with those that wait."""
        return [*self._line.values(), *self._asking.values()].count(node)

    def _next(self, now: float) -> None:
        if self._is_choosing:
            return  # Whoever leaves at once is followed by the loop below.
        self._is_choosing = True
        while len(self._asking) < MAX_AT_ONCE and (fetch := self._first()) is not None:
            node = self._asking[fetch] = self._line.pop(fetch)
            self._turns += 1
            self._last_turn[node] = self._turns
            self._begin(fetch, now)
        self._is_choosing = False

    def _first(self) -> T | None:
        """Who is next: of the idle node that was asked longest ago, the oldest."""
        busy = set(self._asking.values())
        found = [fetch for fetch, node in self._line.items() if node not in busy]
        return min(found, key=lambda fetch: self._last_turn.get(self._line[fetch], 0), default=None)
