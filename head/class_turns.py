"""Whose turn it is among QoS classes, of requests that wait.

The higher class goes first; but of lower classes those that have waited long enough (`AGE_S` longer
than the one that would go) get every fourth turn, so that none starves and a long queue of
background work holds up nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from bus.qos import AGE_S

#: Of so many turns one is for a request of a lower class that has waited long.
AGED_TURN = 4


class Waiting(Protocol):
    """What waits: its class, 0 to 3, lower first, and since when."""

    @property
    def qos(self) -> int: ...

    @property
    def queued_s(self) -> float: ...


W = TypeVar("W", bound=Waiting)


class ClassTurns(Generic[W]):
    """Counts the turns of one queue. Driven by it; reads no clock."""

    def __init__(self) -> None:
        #: Turns in a row in which one of a lower class that has waited long was passed over.
        self._passed = 0

    def order(self, classes: Sequence[Iterator[W]]) -> Iterator[W]:
        """What waits as its turns come.

        Args:
            classes: what waits of each class, in the order of that class.
        """
        passed = self._passed
        heads = [next(each, None) for each in classes]
        while waiting := [head for head in heads if head is not None]:
            best, aged = waiting[0], _aged(waiting)
            if aged is not None:
                passed += 1
            if aged is not None and passed >= AGED_TURN:
                best, passed = aged, 0
            yield best
            heads[best.qos] = next(classes[best.qos], None)

    def count(self, taken: W, firsts: Sequence[W | None]) -> None:
        """Count the turn of what is taken, which still waits.

        Args:
            firsts: what would go next of each class; None where nothing waits.
        """
        waiting = [first for first in firsts if first is not None]
        if taken.qos > waiting[0].qos:
            self._passed = 0
        elif _aged([taken, *waiting[1:]]) is not None:
            self._passed = min(self._passed + 1, AGED_TURN - 1)


def _due_s(one: Waiting) -> float:
    return one.queued_s + AGE_S[one.qos]


def _aged(heads: Sequence[W]) -> W | None:
    """Of what is next in lower classes than the first's, what has waited long enough, if any."""
    longest = min(heads, key=_due_s)
    return longest if longest.qos > heads[0].qos else None
