"""How far nodes may send parts of jobs: as far as their owners and their clients take them."""

from __future__ import annotations

from collections.abc import Iterable

from bus.messages.link_jobs import FIRST_PARTS, JobMore
from head.effects import ClientKey
from head.job_holds import JobHolds
from head.job_records import Job
from head.outbox import Outbox


class JobCredit:
    """Owned by the desk of jobs.

    Args:
        holds: is told which jobs stand still.
    """

    def __init__(self, outbox: Outbox, holds: JobHolds) -> None:
        self._outbox = outbox
        self._holds = holds
        self._stalled: set[ClientKey] = set()

    def grant(self, job: Job) -> None:
        """Let the node send more of a job, when it has little left and the parts are taken."""
        on = job.on
        if on is None:
            return
        if job.held or job.spec.client in self._stalled:
            if on.is_still:
                self._holds.stands_still(job)
        elif on.granted - on.parts <= FIRST_PARTS // 2:
            on.granted = on.parts + FIRST_PARTS
            self._outbox.send(on.link, JobMore(job=on.number, parts=on.granted))
            self._holds.goes_on(job)

    def stall(self, client: ClientKey) -> None:
        """A client takes nothing: its jobs send no further parts."""
        self._stalled.add(client)

    def reads(self, client: ClientKey, running: Iterable[Job]) -> None:
        """It reads again.

        Args:
            running: jobs of all clients.
        """
        self._stalled.discard(client)
        for job in running:
            if job.spec.client == client:
                self.grant(job)

    def gone(self, client: ClientKey) -> None:
        """Its connection ended."""
        self._stalled.discard(client)
