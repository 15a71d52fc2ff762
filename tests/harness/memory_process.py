"""One process in memory: it lives or not, runs or is paused, and has a clock that drifts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.harness.memory_parts import TURN_S

if TYPE_CHECKING:
    from tests.harness.memory_fleet import MemoryFleet


class Process:
    """Everything that happens to a process goes through `post`, so that a pause holds it back.

    Args:
        fleet: the time it lives in.
        name: "head", or the node's.
        rate: how fast its clock runs, 1 is true.
        offset_s: what its clock shows at time 0.
    """

    def __init__(self, fleet: MemoryFleet, name: str) -> None:
        self.fleet = fleet
        self.name = name
        self.rate = 1.0
        self.offset_s = 0.0
        self.paused = False
        self._inbox: list[Callable[[], None]] = []
        self._timer_at: float | None = None
        self._life = 0

    @property
    def alive(self) -> bool:
        raise NotImplementedError

    def turn(self) -> None:
        """What its loop does at the end of every turn."""
        raise NotImplementedError

    def fire(self, now: float) -> None:
        """Its timers are due."""
        raise NotImplementedError

    def due(self) -> float | None:
        """When `fire` is due, by its own clock."""
        raise NotImplementedError

    def now(self) -> float:
        return self.offset_s + self.fleet.now * self.rate

    def true_time(self, local_s: float) -> float:
        """When its clock shows this."""
        return (local_s - self.offset_s) / self.rate

    def begin(self) -> None:
        """A new life: nothing of the former is left."""
        self._life += 1
        self._inbox.clear()
        self._timer_at = None
        self.paused = False

    def post(self, action: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.paused:
            self._inbox.append(action)
            return
        action()
        self.turn()

    def pause(self) -> None:
        if self.alive and not self.paused:
            self.paused = True
            self.fleet.watch.paused(self.name)

    def resume(self) -> None:
        """All that came meanwhile is handled in one turn, timers last, as a loop does it."""
        if not self.alive or not self.paused:
            return
        self.paused = False
        self.fleet.watch.resumed(self.name)
        inbox, self._inbox = self._inbox, []
        for action in inbox:
            action()
        self.fire(self.now())
        self.turn()

    def arm(self) -> None:
        """Have `fire` called in time."""
        due = self.due()
        if due is None:
            return
        due = self.true_time(due)
        if self._timer_at is not None and self._timer_at <= due:
            return
        self._timer_at = due
        life = self._life
        self.fleet.after(max(due - self.fleet.now, TURN_S), lambda: self._timeout(life, due))

    def _timeout(self, life: int, due: float) -> None:
        if not self.alive or life != self._life or self._timer_at != due:
            return
        self._timer_at = None
        if not self.paused:
            self.fire(self.now())
            self.turn()
