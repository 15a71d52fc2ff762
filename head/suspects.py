"""Which requests to suspect when a worker dies, so that one that kills workers ends.

A worker that dies takes all its generations along, and nothing says which of them was the reason.
So every one that ran there is a *suspect* of that death, until it is *cleared*: by the tokens that
it makes elsewhere, by its end, or because another was found to be the reason. A death is *certain*
of the one suspect that is left of it, when all that the worker had is known. Who is suspected of
two deaths, the last of them for certain, is guilty; nobody else ever is, however many it shared.

Deaths become certain in turn. The less suspected of a death go on at once, and the more suspected
wait for them: these have shared more deaths, or had made no tokens there (most bad requests die in
their prefill). The equally suspected are *set apart* when they are few, or shared two deaths: they
run one at a time on a worker until they have made some tokens. So a request kills two workers, or
three when it shared the second with one that had shared the first and was as suspect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from bus.event_window import WINDOW_EVENTS
from bus.ids import NodeIdentity, WorkerIncarnation

#: So many tokens since its last placement clear a request of everything: it is past the place at
#: which a worker died.
CLEARED_AFTER_TOKENS = 16
#: So many more where a worker may have made some that nobody saw before it died: all that a node
#: keeps for a head that is away (bus/event_window.py).
UNSEEN_TOKENS = WINDOW_EVENTS
#: So many since then speak for it. Those of the last three steps may be lost with a worker, so that
#: one that dies at the same place again may have made some of them before.
SETTLED_AFTER_TOKENS = 4
#: Equally suspected of a first death, so many are set apart; more of them go on together.
FEW = 4
#: Deaths that a request shares before it is set apart anyway, and of which it is guilty.
DEATHS = 2

#: One worker process of the fleet: incarnations of different nodes may be equal.
WorkerName = tuple[NodeIdentity, WorkerIncarnation]


@dataclass(slots=True)
class Death:
    """What one request has to do with the death of a worker."""

    worker: WorkerName
    #: It had made tokens there.
    settled: bool = False
    #: Another suspect of it has ended uncleared, before it or since: it never becomes certain.
    unclear: bool = False
    #: It may have made more tokens there than came.
    unseen: bool = False


@dataclass(slots=True, kw_only=True)
class Suspicion:
    """What one answer is suspected of."""

    seen: list[Death] = field(default_factory=list)
    #: It runs beside no other answer that is set apart and has not made some tokens there yet.
    set_apart: bool = False
    #: It was found to kill workers, and ends.
    guilty: bool = False
    #: Errors of engines that ended its generations.
    engine_errors: int = 0

    @classmethod
    def decode(cls, stored: bytes) -> Suspicion:
        """What `encode` gave.

        Raises:
            ValueError, TypeError: it gave something else.
        """
        if not stored:
            return cls()
        fields: list[Any] = msgpack.unpackb(stored)
        if not isinstance(fields[0], list):  # Of an older version, which kept the last one only.
            deaths, set_apart, engine_errors, node, worker = fields
            seen = [(node, worker, False, True)] if deaths else []
        else:
            seen, set_apart, engine_errors = fields
        return cls(
            seen=[
                Death((NodeIdentity(node), WorkerIncarnation(worker)), *flags)
                for node, worker, *flags in seen
            ],
            set_apart=set_apart,
            engine_errors=engine_errors,
        )

    def encode(self) -> bytes:
        """What of it outlives the head; empty when it is suspected of nothing."""
        if not (self.seen or self.set_apart or self.engine_errors):
            return b""
        seen = [(*death.worker, death.settled, death.unclear, death.unseen) for death in self.seen]
        packed: bytes = msgpack.packb((seen, self.set_apart, self.engine_errors))
        return packed

    @property
    def deaths(self) -> int:
        """Deaths of workers that it is suspected of."""
        return len(self.seen)

    @property
    def rank(self) -> tuple[int, int]:
        """How much it is suspected; higher is more."""
        return len(self.seen), sum(not death.settled for death in self.seen)

    @property
    def is_unseen(self) -> bool:
        """Whether it is cleared past what a node keeps for a reader that takes nothing."""
        return any(death.unseen for death in self.seen)

    def of(self, worker: WorkerName) -> Death | None:
        """What it has to do with the death of a worker; None for nothing."""
        return next((death for death in self.seen if death.worker == worker), None)

    def shares_with(self, other: Suspicion) -> bool:
        """Whether both are suspected of one death."""
        return any(other.of(death.worker) is not None for death in self.seen)

    def progress(self, tokens: int) -> None:
        """`tokens` were committed since the last placement."""
        if tokens >= CLEARED_AFTER_TOKENS + (UNSEEN_TOKENS if self.is_unseen else 0):
            self.clear()

    def clear(self) -> None:
        self.seen.clear()
        self.engine_errors = 0
        self.set_apart = self.guilty = False

    def excuse(self, worker: WorkerName) -> None:
        """It did not kill that worker: another did, or the worker had not begun with it."""
        self.seen = [death for death in self.seen if death.worker != worker]
        self.guilty = self.guilty and len(self.seen) >= DEATHS
        self.set_apart = self.set_apart and bool(self.seen)


@dataclass(frozen=True, slots=True)
class Suspect:
    """An answer on a worker that died.

    Attributes:
        tokens: of it that came from that worker.
        unseen: whether the worker may have made more.
    """

    suspicion: Suspicion
    tokens: int
    unseen: bool = False


def blame(suspects: Iterable[Suspect], worker: WorkerName, *, unclear: bool = False) -> None:
    """A worker died with these answers on it: all of them are suspected of that.

    Who was blamed for this death before, by an earlier start of the head, is not again.

    Args:
        unclear: others may have been on it too, whose answers are over.
    """
    new = [one for one in suspects if one.suspicion.of(worker) is None]
    for one in new:
        settled = one.tokens >= SETTLED_AFTER_TOKENS
        one.suspicion.seen.append(Death(worker, settled, unclear, one.unseen))
    ranks = Counter(one.suspicion.rank for one in new)
    for one in new:
        if one.suspicion.deaths >= DEATHS or ranks[one.suspicion.rank] <= FEW:
            one.suspicion.set_apart = True


def judge(suspicions: Iterable[Suspicion], everyone: Sequence[Suspicion]) -> None:
    """Find who is guilty of these, none of which runs now: of two deaths, the last one certain.

    Args:
        everyone: of all answers that have not ended and are suspected of a death.
    """
    suspects = Counter(death.worker for one in everyone for death in one.seen)
    for one in suspicions:
        if one.deaths >= DEATHS:
            last = one.seen[-1]
            one.guilty = suspects[last.worker] == 1 and not last.unclear


def explain(guilty: Suspicion, others: Iterable[Suspicion]) -> None:
    """One that is guilty ends: it was the reason of all its deaths."""
    for other in others:
        if other is not guilty:
            for death in guilty.seen:
                other.excuse(death.worker)


def leave_unclear(ended: Suspicion, others: Iterable[Suspicion]) -> None:
    """One ends uncleared: its deaths may be its doing, and are never certain of another."""
    for other in others:
        if other is not ended:
            for death in ended.seen:
                if (shared := other.of(death.worker)) is not None:
                    shared.unclear = True


def waits_for(one: Suspicion, other: Suspicion) -> bool:
    """Whether `one` is to wait until `other`, if it can go on, is cleared of a death they share."""
    return other.rank < one.rank and one.shares_with(other)
