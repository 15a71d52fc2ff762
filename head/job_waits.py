"""Until when a job waits that no node can do now, since one may come that can."""

from __future__ import annotations

from collections.abc import Callable

from bus.timers import Timers
from head.fleet import Fleet
from head.job_records import Job
from head.waiting import RECHECK_S, WaitingPolicy


class JobWaits:
    """Owned by the desk of jobs.

    Args:
        policy: how long a job waits for a node that may come.
        failover_wait_s: how long one that was lost waits for another node.
        now: this moment; nodes may be on their way.
        look: is called when it is time to look at what waits again.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: WaitingPolicy,
        failover_wait_s: float,
        now: float,
        timers: Timers,
        look: Callable[[float], None],
    ) -> None:
        self._fleet = fleet
        self._timers = timers
        self._look = look
        self._recheck: int | None = None
        self._node_wait_s = policy.node_wait_s
        self._failover_wait_s = failover_wait_s
        self._started_s = now
        self._settled_s = now + self._node_wait_s

    def link_down(self, now: float) -> None:
        """A node's link ended; it may come back."""
        self._settled_s = max(self._settled_s, now + self._node_wait_s)

    def look_by(self, until_s: float, now: float) -> None:
        """Look again in a moment, at the latest when something has waited as long as it may."""
        if self._recheck is None:
            self._recheck = self._timers.at(min(until_s, now + RECHECK_S), self._look_again)

    def _look_again(self, now: float) -> None:
        self._recheck = None
        self._look(now)

    def until(self, job: Job, now: float) -> float | None:
        """Until when it waits; None when it is not to wait.

        While a node could, it waited for room there, which is no fault of the fleet.
        """
        model = job.spec.model
        alone_s = job.since_s if job.failed_s is None else job.failed_s
        alone_s = max(alone_s, self._started_s, self._fleet.served_until_s(model))
        loading = self._fleet.loading(model)
        if job.failed_s is not None:
            until = alone_s + self._failover_wait_s
            return until if now < until else now + RECHECK_S if loading else None
        until = alone_s + self._node_wait_s
        may_come = loading or (now < self._settled_s and not job.tried)
        return until if may_come and now < until else None
