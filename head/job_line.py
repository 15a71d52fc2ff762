"""Jobs of one model that wait, in the order in which they are to begin.

Classes take turns as those of requests for text do (head/class_turns.py); of one class clients take
turns, and of one client the oldest job goes first. Jobs of clients that may begin none stand in
nobody's way.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

from bus.qos import AGE_S
from head.class_turns import ClassTurns
from head.effects import ClientKey
from head.fair_line import FairLine


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job that waits.

    Attributes:
        job: names it.
        client: whose turn it takes.
        qos: class, 0 to 3, lower first.
        queued_s: since when its owner waits; one that begins anew keeps its first time.
    """

    job: int
    client: ClientKey
    qos: int
    queued_s: float


class JobLine:
    """Owned by the desk of jobs. Reads no clock.

    Args:
        held: gives the clients of whose jobs none begins now.
    """

    def __init__(self, held: Callable[[], AbstractSet[ClientKey]] = frozenset) -> None:
        self._held = held
        self._jobs: dict[int, WaitingJob] = {}
        self._classes = tuple(FairLine[WaitingJob]() for _ in AGE_S)
        self._turns = ClassTurns[WaitingJob]()

    def __len__(self) -> int:
        return len(self._jobs)

    def push(self, job: WaitingJob) -> None:
        """Let a job wait behind its client's others of its class."""
        self._jobs[job.job] = job
        self._classes[job.qos].push(job.client, job)

    def put_back(self, job: WaitingJob) -> None:
        """Let a job wait again that was taken: it is the next of its class.

        Of several the first that comes back is, so they should come in the order they were taken.
        """
        self._jobs[job.job] = job
        self._classes[job.qos].come_back(job.client, job, lambda waiting: waiting.job)

    def candidates(self, most: int) -> list[int]:
        """The next jobs in the order to try them; `take` those that find room.

        Those of held clients are none.
        """
        held = self._held()
        orders = [line.order(held) for line in self._classes]
        return [waiting.job for waiting in islice(self._turns.order(orders), most)]

    def held(self, most: int) -> list[int]:
        """The oldest jobs that wait and are no candidates."""
        if not (held := self._held()):
            return []
        found = (waiting.job for waiting in self._jobs.values() if waiting.client in held)
        return list(islice(found, most))

    def take(self, job: int) -> None:
        """Remove a job that begins; it has had its class's turn, and its client's.

        Raises:
            KeyError: it does not wait.
        """
        waiting, held = self._jobs.pop(job), self._held()
        self._turns.count(waiting, [next(line.order(held), None) for line in self._classes])
        self._classes[waiting.qos].take(waiting.client, waiting)

    def remove(self, job: int) -> None:
        """Remove a job that is over; fine when it does not wait."""
        waiting = self._jobs.pop(job, None)
        if waiting is not None:
            self._classes[waiting.qos].remove_if(lambda other: other is waiting)
