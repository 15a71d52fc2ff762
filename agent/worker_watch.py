"""Whether a worker process is hung. Pure: messages to and from it, looks at its process, time.

A worker is busy, not hung, as long as it makes steps (a prefill chunk is a step) or, where one
takes long, its process uses CPU time: a held GIL or a long prefill answers nothing and is alive.

    work waits, no step, and the process stopped or its CPU time still    for `stall_limit_s`
    work waits, no step, CPU time moves                                   for `stall_hard_s`
    the model is being loaded                                             for `load_limit_s`

Work waits while a generation was submitted and neither finished nor paused, a job has no end and
was not cancelled, a unit of work of a chain came and was not passed on, or a ping has no answer. A
worker that says it is idle has nothing that it could run (its lanes may all be paused), which
counts as a step. One whose units of work are with other stages waits for these; nothing waits for
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agent.proc_state import ProcessState
from bus.ids import GenerationId
from bus.messages.worker import (
    JOB_ENDS,
    JOB_REQUESTS,
    Cancel,
    Output,
    Pause,
    Ping,
    Pong,
    Ready,
    Rejected,
    Resume,
    Submit,
    WorkerStats,
)
from bus.messages.worker_stages import StageClose, StageFailed, StageOpen, StageUnit

#: How often a process is looked at while work waits for it, and how often within a short limit.
LOOK_S = 1.0
LOOKS_IN_A_LIMIT = 10
#: A look that comes so much too late means that this process or the machine stood still itself.
GAP_S = 5.0
#: CPU time counts as still below both: a thread that only takes messages off a pipe uses some.
STILL_S = 0.02
STILL_SHARE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPolicy:
    """Times in seconds; 0 is no limit."""

    load_limit_s: float = 1800.0
    stall_limit_s: float = 60.0
    stall_hard_s: float = 600.0

    @property
    def shortest_s(self) -> float:
        """The shortest limit; infinite when there is none."""
        limits = (self.load_limit_s, self.stall_limit_s, self.stall_hard_s)
        return min((limit for limit in limits if limit > 0), default=math.inf)


class WorkerWatch:
    """Watches one model's worker, over all its incarnations. Driven by `agent.workers`.

    Tell it what was sent and heard, ask `next_timeout`, and give `look` the process's state then.
    """

    def __init__(self, policy: WatchPolicy = WatchPolicy()) -> None:
        self._policy = policy
        self._look_every_s = min(LOOK_S, policy.shortest_s / LOOKS_IN_A_LIMIT)
        self._gap_s = min(GAP_S, policy.shortest_s / 2)
        self._phase: Literal["none", "loading", "serving"] = "none"
        #: Generations that the worker has to finish, and whether each is paused.
        self._owed: dict[GenerationId, bool] = {}
        #: Jobs that it has to end.
        self._jobs: set[GenerationId] = set()
        #: By chain, units of work that it has; below 0, those that other stages have for it.
        self._units: dict[int, int] = {}
        self._pinged = False
        self._steps = 0
        #: The last step, or when work began to wait; None while nothing waits.
        self._since: float | None = None
        self._look_at = math.inf
        #: CPU time of the process, and when it was seen to have moved to there.
        self._cpu_s = 0.0
        self._moved_at: float | None = None

    # --- what happens to it -------------------------------------------------------------------

    def started(self, now: float) -> None:
        """A new process loads the model."""
        self.ended()
        self._phase = "loading"
        self._restart(now)

    def ended(self) -> None:
        """The process is gone, or given up."""
        self._phase = "none"
        self._owed.clear()
        self._jobs.clear()
        self._units.clear()
        self._pinged = False
        self._steps = 0
        self._since = self._moved_at = None

    def sent(self, message: object, now: float) -> None:
        """A message was handed to its pipe."""
        match message:
            case Submit(generation=generation):
                self._owed[generation] = False
            case Pause(generation=generation) | Resume(generation=generation):
                if generation in self._owed:
                    self._owed[generation] = isinstance(message, Pause)
            case StageUnit(chain=chain):
                self._count_unit(chain, 1)
            case StageOpen(chain=chain):
                self._units[chain] = 0
            case StageClose(chain=chain):
                self._close(chain)
            case Ping():
                self._pinged = True
            case Cancel(generation=job):
                self._jobs.discard(job)
            case _ if isinstance(message, JOB_REQUESTS):
                self._jobs.add(message.job)
        self._see_work(now)

    def heard(self, message: object, now: float) -> None:
        """It said something."""
        match message:
            case Ready():
                self._phase = "serving"
                self._since = None
            case Rejected(generation=generation):
                self._owed.pop(generation, None)
            case StageUnit(chain=chain):
                self._count_unit(chain, -1)
                if self._since is not None:
                    self._since = now
            case StageFailed(chain=chain):
                self._close(chain)
            case Pong(stats=stats):
                self._pinged = False
                self._see_steps(stats, now)
            case Output(runs=runs, stats=stats):
                for run in runs:
                    if run.finish is not None:
                        self._owed.pop(run.generation, None)
                self._see_steps(stats, now)
            case _ if isinstance(message, JOB_ENDS):
                self._jobs.discard(message.job)
        self._see_work(now)

    def _count_unit(self, chain: int, by: int) -> None:
        if chain in self._units:
            self._units[chain] += by

    def _close(self, chain: int) -> None:
        """It forgets what it has of a chain; generations are there with a chain alone."""
        if self._units.pop(chain, None) is not None:
            self._owed.clear()

    def _see_steps(self, stats: WorkerStats, now: float) -> None:
        stepped = stats.steps != self._steps or stats.phase == "idle"
        self._steps = stats.steps
        if stepped and self._since is not None:
            self._since = now

    def _see_work(self, now: float) -> None:
        if self._phase != "serving":
            return
        units = self._units.values()
        owes = not all(self._owed.values()) and min(units, default=0) >= 0
        waits = self._pinged or bool(self._jobs) or owes or max(units, default=0) > 0
        if not waits:
            self._since = None
        elif self._since is None:
            self._restart(now)

    def _restart(self, now: float) -> None:
        """Begin to count from now; what the process used before is not known."""
        self._since = now
        self._look_at = now + self._look_every_s
        self._moved_at = None

    # --- time ---------------------------------------------------------------------------------

    def next_timeout(self) -> float | None:
        """When the process is to be looked at (seconds), or None while nothing waits for it."""
        if self._since is None or math.isinf(self._policy.shortest_s):
            return None
        return self._look_at

    def look(self, process: ProcessState | None, now: float) -> str | None:
        """Judge the worker by the present state of its process.

        Args:
            process: None when it has ended, which others tell.

        Returns:
            Why it is hung, for a person; None when it is not. Once per incarnation.
        """
        if self._since is None or process is None:
            self._look_at = now + self._look_every_s
            return None
        if now - self._look_at > self._gap_s:
            self._restart(now)
        self._look_at = now + self._look_every_s
        moved_at = self._see_movement(process, now)
        why = self._judge(process, self._since, moved_at, now)
        if why is not None:
            self.ended()
        return why

    def _see_movement(self, process: ProcessState, now: float) -> float:
        """When the process was last seen to have run."""
        if self._moved_at is None:
            moved = True  # The first look has nothing to compare with.
        elif self._phase == "loading":
            # A disk or a compiler may keep it waiting: only a stop counts.
            moved = not process.is_stopped
        else:
            used_s, in_s = process.cpu_s - self._cpu_s, now - self._moved_at
            moved = used_s >= STILL_S and used_s >= STILL_SHARE * in_s
        if moved or self._moved_at is None:
            self._cpu_s, self._moved_at = process.cpu_s, now
        return self._moved_at

    def _judge(
        self, process: ProcessState, since: float, moved_at: float, now: float
    ) -> str | None:
        policy, loading = self._policy, self._phase == "loading"
        for_s = now - since
        what = "the model was not loaded" if loading else "no step was made"
        if 0 < policy.stall_limit_s <= now - max(since, moved_at):
            how = (
                "its process is stopped (by SIGSTOP or a debugger)"
                if process.is_stopped
                else "its process uses no CPU time"
            )
            return f"hung: {what} for {for_s:.0f} s and {how}"
        hard_s = policy.load_limit_s if loading else policy.stall_hard_s
        if 0 < hard_s <= for_s:
            key = "worker.load_limit_s" if loading else "worker.stall_hard_s"
            return f"hung: {what} for {for_s:.0f} s; raise {key} if it may take so long here"
        return None
