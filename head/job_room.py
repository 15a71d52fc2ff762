"""Which nodes have room for one more job.

A node that works and says that it is full has room again when it has done something: a job that it
refused waits until one of the model ends there, or a while. Others go past it meanwhile, but not
for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bus.ids import ModelName, NodeIdentity
from bus.timers import Timers
from head.fleet import Fleet
from head.fleet_node import Node
from head.job_holds import JobHolds
from head.job_records import Job

#: Jobs of one model that a node has at once, beside those that stand still.
MAX_IN_FLIGHT = 4
#: After so long a full node is asked again although no job of the model ended there: a worker may
#: be done with one whose client reads slowly.
ASK_AGAIN_S = 5.0
#: So long may other jobs of its kind go past one that was refused.
PASSED_S = 30.0


@dataclass(slots=True)
class _Full:
    """A node that is full for some jobs of a model, and for all of some kinds."""

    timer: int
    jobs: set[int] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)


class JobRoom:
    """Owned by the desk of jobs.

    Attributes:
        holds: clients of whose jobs none begins now.

    Args:
        freed: is told of a model for whose jobs there may be room again.
    """

    def __init__(
        self, fleet: Fleet, timers: Timers, freed: Callable[[ModelName, float], None]
    ) -> None:
        self._fleet = fleet
        self._timers = timers
        self._freed = freed
        self.holds = JobHolds()
        self._full: dict[tuple[NodeIdentity, ModelName], _Full] = {}

    def has(self, node: Node, job: Job) -> bool:
        """Whether a job may begin on a node, which has room for it."""
        if job.spec.client in self.holds.of(job.spec.model):
            return False
        full = self._full.get((node.identity, job.spec.model))
        if full is not None and (job.number in full.jobs or job.spec.kind in full.kinds):
            return False
        return self.running(node, job.spec.model) < MAX_IN_FLIGHT

    def running(self, node: Node, model: ModelName) -> int:
        """How many jobs of a model keep a place on a node."""
        return node.jobs[model] - self.holds.still_on(node.identity, model)

    def best(self, job: Job) -> Node | None:
        """Of the nodes that can do a job and have room, the one where least of its model runs."""
        able = [n for n in self._fleet.nodes if self.has(n, job) and not job.objection(n)]
        model = job.spec.model
        return min(able, key=lambda node: (self.running(node, model), node.identity), default=None)

    def is_none(self, model: ModelName) -> bool:
        """Whether some nodes serve a model, and each has all jobs of it that it may have."""
        serving = [node for node in self._fleet.nodes if node.view(model).serving is not None]
        return bool(serving) and all(self.running(node, model) >= MAX_IN_FLIGHT for node in serving)

    def refused(self, node: Node, job: Job, now: float) -> bool:
        """A node said that it is full; what it refused is off it.

        Returns:
            Whether it works for this head, so that it will have room.
        """
        if not node.jobs.total():
            return False
        key = (node.identity, job.spec.model)

        def look(at: float) -> None:
            del self._full[key]
            self._freed(key[1], at)

        if (full := self._full.get(key)) is None:
            full = self._full[key] = _Full(self._timers.at(now + ASK_AGAIN_S, look))
        full.jobs.add(job.number)
        if job.refused_s is None:
            job.refused_s = now
        elif now - job.refused_s >= PASSED_S:
            full.kinds.add(job.spec.kind)
        return True

    def ended(self, node: Node, model: ModelName) -> None:
        """A job of a model is off a node."""
        if (full := self._full.pop((node.identity, model), None)) is not None:
            self._timers.cancel(full.timer)
