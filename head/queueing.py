"""Requests that wait at the head for a node with room: one queue per model.

Between QoS classes the higher goes first, with turns for what has waited long
(head/class_turns.py). Inside a class, owners share by tokens: the owner that was served least goes
next (start-time fair queueing, which gives the shares of deficit round robin without a quantum); of
one owner's requests the oldest goes first. An owner that comes back begins where the others are, so
pauses earn no credit.

Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from bus.errors import QueueFull
from bus.ids import ModelName
from bus.qos import AGE_S
from head.class_turns import ClassTurns

DEFAULT_LIMIT = 1024
#: How many candidates are looked at in one round, when those before them find no room.
LOOK_AHEAD = 64
#: The retry hint: when a place should be free, but neither at once nor far away.
MIN_RETRY_MS, MAX_RETRY_MS = 1000, 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A request that waits.

    Attributes:
        answer: names it.
        owner: client key that it is counted for.
        qos: class, 0 to 3, lower first.
        cost_tokens: what it will take: prompt and expected answer.
        queued_s: when it came; a moved stream keeps its first time.
        expires_s: when its wall budget ends; inf for none.
    """

    answer: int
    owner: str
    qos: int
    cost_tokens: int
    queued_s: float
    expires_s: float = float("inf")


def _age(entry: Entry) -> tuple[float, int]:
    return entry.queued_s, entry.answer


@dataclass(slots=True)
class _Class:
    """The waiting requests of one class."""

    #: Per owner, oldest first; never an empty list.
    waiting: dict[str, list[Entry]] = field(default_factory=dict)
    #: Tokens served per owner since the class was last empty, not below `floor` for those waiting.
    served: dict[str, float] = field(default_factory=dict)
    #: What the owner served last had before: where owners that come back begin.
    floor: float = 0.0

    def push(self, entry: Entry) -> None:
        if entry.owner not in self.waiting:
            self.waiting[entry.owner] = []
            self.served[entry.owner] = max(self.served.get(entry.owner, 0.0), self.floor)
        insort(self.waiting[entry.owner], entry, key=_age)

    def remove(self, entry: Entry) -> None:
        entries = self.waiting[entry.owner]
        entries.remove(entry)
        if not entries:
            del self.waiting[entry.owner]
        if not self.waiting:
            self.served.clear()
            self.floor = 0.0

    def charge(self, entry: Entry) -> None:
        self.floor = max(self.floor, self.served[entry.owner])
        self.served[entry.owner] += entry.cost_tokens

    def order(self) -> Iterator[Entry]:
        """The entries as they would be served, were all to find room."""
        heap = [
            (self.served[owner], _age(entries[0]), owner, 0)
            for owner, entries in self.waiting.items()
        ]
        heapq.heapify(heap)
        while heap:
            served, _, owner, index = heapq.heappop(heap)
            entries = self.waiting[owner]
            yield entries[index]
            if index + 1 < len(entries):
                after = served + entries[index].cost_tokens
                heapq.heappush(heap, (after, _age(entries[index + 1]), owner, index + 1))


class RequestQueue:
    """The waiting requests of one model. Driven by the head's core; reads no clock.

    Args:
        model: for messages.
        limit: how many may wait.
    """

    def __init__(self, model: ModelName, limit: int = DEFAULT_LIMIT) -> None:
        self._model = model
        self._limit = limit
        self._entries: dict[int, Entry] = {}
        self._classes = tuple(_Class() for _ in AGE_S)
        self._turns = ClassTurns[Entry]()
        self._last_taken_s: float | None = None
        self._interval_s = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, answer: object) -> bool:
        return answer in self._entries

    def push(self, entry: Entry) -> None:
        """Let a new request wait.

        Raises:
            QueueFull: as many wait as may, with a hint when to try again.
            ValueError: it waits already, or has a class that is none.
        """
        if len(self._entries) >= self._limit:
            raise QueueFull(
                f"{len(self._entries)} requests wait for {self._model}, which is all the queue "
                "holds; try again later or add a node",
                retry_after_ms=self.retry_after_ms(),
            )
        self.readmit(entry)

    def readmit(self, entry: Entry) -> None:
        """Let a request wait again that was admitted before; no limit holds for it.

        Raises:
            ValueError: it waits already, or has a class that is none.
        """
        if entry.answer in self._entries:
            raise ValueError(f"answer {entry.answer} waits already")
        if not 0 <= entry.qos < len(self._classes):
            raise ValueError(f"QoS class {entry.qos} is none; they are 0 to 3")
        self._entries[entry.answer] = entry
        self._classes[entry.qos].push(entry)

    def candidates(self, most: int = LOOK_AHEAD) -> list[Entry]:
        """The next requests in the order to try them; `take` the one that finds room."""
        return list(islice(self._order(), most))

    def take(self, answer: int, now: float) -> Entry:
        """Remove a request that was placed, and count it for its owner.

        Raises:
            KeyError: it does not wait.
        """
        entry = self._entries[answer]
        self._turns.count(entry, [next(queue.order(), None) for queue in self._classes])
        del self._entries[answer]
        queue = self._classes[entry.qos]
        queue.charge(entry)
        queue.remove(entry)
        if self._last_taken_s is not None:
            interval = now - self._last_taken_s
            self._interval_s = (
                (3 * self._interval_s + interval) / 4 if self._interval_s else interval
            )
        self._last_taken_s = now
        return entry

    def remove(self, answer: int) -> Entry | None:
        """Remove a request that was cancelled; None when it does not wait."""
        entry = self._entries.pop(answer, None)
        if entry is not None:
            self._classes[entry.qos].remove(entry)
        return entry

    def position(self, answer: int) -> int | None:
        """How many go before it; None when it does not wait."""
        if answer not in self._entries:
            return None
        return next(n for n, entry in enumerate(self._order()) if entry.answer == answer)

    def would_wait_behind(self, qos: int, now: float) -> int:
        """How many go before a request that comes now, if it is the last of its class."""
        newcomer = Entry(answer=-1, owner="", qos=qos, cost_tokens=0, queued_s=now)
        heads = [queue.order() for queue in self._classes]
        heads[qos] = chain(heads[qos], (newcomer,))
        return next(n for n, entry in enumerate(self._turns.order(heads)) if entry is newcomer)

    def waiting_by_class(self) -> list[list[Entry]]:
        """The waiting requests of each QoS class, oldest first."""
        return [
            sorted((e for e in self._entries.values() if e.qos == qos), key=_age)
            for qos in range(len(self._classes))
        ]

    def expired(self, now: float) -> list[Entry]:
        """Remove and give those whose wall budget has ended, oldest first."""
        over = sorted((e for e in self._entries.values() if e.expires_s <= now), key=_age)
        for entry in over:
            self.remove(entry.answer)
        return over

    def retry_after_ms(self) -> int:
        """When a place should be free, by how fast requests were placed lately."""
        return min(max(round(self._interval_s * 1000), MIN_RETRY_MS), MAX_RETRY_MS)

    def _order(self) -> Iterator[Entry]:
        return self._turns.order([queue.order() for queue in self._classes])
