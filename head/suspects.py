"""Which requests to suspect when a worker dies, so that one that kills workers ends.

A worker that dies takes all its generations along, and nothing says which of them was the reason.
Blamed are those without a token from that worker (a bad request mostly dies in its prefill), or
all when there is none; of the blamed, those that were set apart before are blamed alone. A request
that is blamed alone, or twice, is *set apart*: it runs beside no other of its kind until it has
made a token, so the next death names it. One that is blamed alone and was blamed before ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgpack

from bus.ids import NodeIdentity, WorkerIncarnation

#: So many tokens since its last placement clear a request of everything.
CLEARED_AFTER_TOKENS = 16
#: Deaths that a request may be blamed for until it is set apart, though never alone.
DEATHS_TO_SET_APART = 2

#: One worker process of the fleet: incarnations of different nodes may be equal.
WorkerName = tuple[NodeIdentity, WorkerIncarnation]
NO_WORKER: WorkerName = (NodeIdentity(""), WorkerIncarnation(0))


@dataclass(slots=True, kw_only=True)
class Suspicion:
    """What one answer is suspected of."""

    #: Deaths of workers that it was blamed for.
    deaths: int = 0
    #: It runs beside no other answer that is set apart and has no token there yet. Only one that
    #: is blamed for a death is.
    set_apart: bool = False
    #: It was found to kill workers, and ends.
    guilty: bool = False
    #: Errors of engines that ended its generations.
    engine_errors: int = 0
    #: The worker of the last death that it was blamed for.
    last: WorkerName = NO_WORKER

    @classmethod
    def decode(cls, stored: bytes) -> Suspicion:
        """What `encode` gave.

        Raises:
            ValueError, TypeError: it gave something else.
        """
        if not stored:
            return cls()
        deaths, set_apart, engine_errors, node, worker = msgpack.unpackb(stored)
        last = (NodeIdentity(node), WorkerIncarnation(worker))
        return cls(deaths=deaths, set_apart=set_apart, engine_errors=engine_errors, last=last)

    def encode(self) -> bytes:
        """What of it outlives the head; empty when it is suspected of nothing."""
        if not (self.deaths or self.set_apart or self.engine_errors):
            return b""
        fields = (self.deaths, self.set_apart, self.engine_errors, *self.last)
        packed: bytes = msgpack.packb(fields)
        return packed

    def progress(self, tokens: int) -> None:
        """`tokens` were committed since the last placement."""
        if tokens >= CLEARED_AFTER_TOKENS:
            self.clear()

    def clear(self) -> None:
        self.deaths = self.engine_errors = 0
        self.set_apart = False

    def excuse(self, worker: WorkerName) -> None:
        """The worker had not even begun with it when it died."""
        if self.last == worker and self.deaths:
            self.deaths -= 1
            self.last = NO_WORKER
            self.guilty = False
            if not self.deaths:
                self.set_apart = False


@dataclass(frozen=True, slots=True)
class Suspect:
    """An answer on a worker that died; `proven` when a token from that worker was committed."""

    suspicion: Suspicion
    proven: bool


def blame(suspects: Iterable[Suspect], worker: WorkerName) -> None:
    """A worker died with these answers on it: change what they are suspected of.

    Who was blamed for this death before, by an earlier start of the head, is not again.
    """
    everyone = [one for one in suspects if one.suspicion.last != worker]
    blamed = [one.suspicion for one in everyone if not one.proven]
    if not blamed:
        blamed = [one.suspicion for one in everyone]
    blamed = [one for one in blamed if one.set_apart] or blamed
    alone = len(blamed) == 1
    for suspicion in blamed:
        if alone and suspicion.deaths:
            suspicion.guilty = True
        suspicion.deaths += 1
        suspicion.last = worker
        if alone or suspicion.deaths >= DEATHS_TO_SET_APART:
            suspicion.set_apart = True
