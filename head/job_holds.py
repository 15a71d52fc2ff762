"""Clients that take nothing: of which no job begins now, and which of their jobs stand still.

A node sends of a job what its client may yet take, and then waits. A job that waits so costs the
node no work, so it keeps no place of those that may run; but one client has few of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Set as AbstractSet

from bus.ids import ModelName, NodeIdentity
from head.effects import ClientKey
from head.job_records import Job

#: Jobs of a model that stand still, of one client: with so many it begins no further one of it.
MAX_STILL_OF_CLIENT = 4
#: Those of a model that keep no place on one node.
MAX_STILL_ON_NODE = 64


class JobHolds:
    """Owned by the room for jobs.

    Attributes:
        full: clients for which too much waits already.
    """

    def __init__(self) -> None:
        self.full: set[ClientKey] = set()
        self._still: dict[int, tuple[NodeIdentity, ModelName, ClientKey]] = {}
        self._on: Counter[tuple[NodeIdentity, ModelName]] = Counter()
        self._of: defaultdict[ModelName, Counter[ClientKey]] = defaultdict(Counter)
        #: Models of whose jobs more may begin since some went on.
        self._released: set[ModelName] = set()

    def of(self, model: ModelName) -> AbstractSet[ClientKey]:
        """Clients of whose jobs of a model none begins now."""
        slow = {client for client, jobs in self._of[model].items() if jobs >= MAX_STILL_OF_CLIENT}
        return slow | self.full if slow else self.full

    def still_on(self, node: NodeIdentity, model: ModelName) -> int:
        """How many jobs of a model keep no place on a node."""
        return min(self._on[node, model], MAX_STILL_ON_NODE)

    @property
    def still(self) -> AbstractSet[int]:
        """Numbers of the jobs that stand still."""
        return self._still.keys()

    def stands_still(self, job: Job) -> None:
        """A job's node has sent all that it may. May be told again."""
        if job.number in self._still or job.on is None:
            return
        node, model, client = job.on.node.identity, job.spec.model, job.spec.client
        self._still[job.number] = (node, model, client)
        self._on[node, model] += 1
        self._of[model][client] += 1

    def goes_on(self, job: Job) -> None:
        """It may send more, or is off its node; fine when it did not stand still."""
        if (found := self._still.pop(job.number, None)) is None:
            return
        node, model, client = found
        self._on[node, model] -= 1
        self._of[model][client] -= 1
        if not self._of[model][client]:
            del self._of[model][client]
        self._released.add(model)

    def take_released(self) -> set[ModelName]:
        """Models of which jobs may begin since others went on; once."""
        released, self._released = self._released, set()
        return released
