"""Child processes that are kept running: the agent's workers, and the text processes.

A slot is a place for one child. Its child may die and is then started again, after 0.25 s, twice
as long after each further death, up to 30 s, and 0.25 s again once the owner called it ready.

    send -> backlog of the incarnation -> pipe -> child
    events: ChildStarted, then ChildMessage..., then ChildExited; per incarnation, in this order

What was sent to an incarnation that died is gone with it; its owner keeps each job until the child
has answered, and gives it to the next incarnation if it still wants it done.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bus.errors import StartError
from bus.ids import WorkerIncarnation
from bus.state import private_folder
from bus.transport import clock
from bus.transport.child import Child, ChildSpec
from bus.transport.loop import Loop
from bus.transport.pipes import MAX_MESSAGE_BYTES, remove_stale_pipes

FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 30.0
#: A full pipe is tried again after this long.
RETRY_S = 0.005
#: What waits in front of one pipe; more means that the owner sends without limits of its own.
MAX_BACKLOG_MESSAGES = 1024
MAX_BACKLOG_BYTES = 2 * MAX_MESSAGE_BYTES
#: How long after an exit the last messages may take through the I/O thread.
DRAIN_S = 1.0
#: ... and when the child never connected, as far as is known.
DRAIN_UNCONNECTED_S = 0.05

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """The slot has a new process, which is not ready yet."""

    slot: str
    incarnation: WorkerIncarnation


@dataclass(frozen=True, slots=True)
class ChildMessage:
    """The child sent `data`."""

    slot: str
    incarnation: WorkerIncarnation
    data: bytes


@dataclass(frozen=True, slots=True)
class ChildExited:
    """The child is gone; nothing of this incarnation follows.

    Attributes:
        returncode: its exit status, or -N when signal N ended it.
        respawn_in_s: when the next incarnation starts; None for a slot that was stopped.
    """

    slot: str
    incarnation: WorkerIncarnation
    returncode: int
    respawn_in_s: float | None


PoolEvent = ChildStarted | ChildMessage | ChildExited


@dataclass(slots=True)
class _Slot:
    spec: ChildSpec
    child: Child | None = None
    #: Messages the pipe has not taken, oldest first.
    backlog: deque[bytes] = field(default_factory=deque)
    backlog_bytes: int = 0
    backoff_s: float = FIRST_BACKOFF_S
    stopping: bool = False
    #: Times on the loop's clock; None: not waiting for it.
    respawn_at: float | None = None
    kill_at: float | None = None
    retry_at: float | None = None
    #: Set once the process has ended: when its last messages count as lost.
    drain_until: float | None = None

    def next_timeout(self) -> float | None:
        times = (self.respawn_at, self.kill_at, self.retry_at, self.drain_until)
        return min((at for at in times if at is not None), default=None)


class ProcessPool:
    """Keeps one child per slot running. Main thread only; driven by the loop.

    Args:
        loop: polls pipes and pidfds, and fires the timers.
        run_dir: folder of the sockets, made with mode 0700 when missing.
        next_incarnation: a number above all that this run folder has seen.

    Raises:
        StartError: others can enter the run folder.
    """

    def __init__(
        self,
        loop: Loop,
        run_dir: Path,
        next_incarnation: Callable[[], WorkerIncarnation],
        now: Callable[[], float] = clock.now,
    ) -> None:
        self._loop = loop
        self._run_dir = private_folder(run_dir)
        self._next_incarnation = next_incarnation
        self._now = now
        self._slots: dict[str, _Slot] = {}
        self._events: deque[PoolEvent] = deque()
        # Only this process holds the write end, so it reads as ended when we are gone.
        self._death_read, self._death_write = os.pipe()
        loop.add_timer_source(self.next_timeout, self.handle_timeout)

    # --- slots --------------------------------------------------------------------------------

    def start_slot(self, spec: ChildSpec) -> None:
        """Add a slot, named `spec.name`, and start its first child.

        Raises:
            StartError: there is a slot of this name, or the child can not be started.
        """
        if spec.name in self._slots:
            raise StartError(f"child {spec.name} is running already; give the new one another name")
        remove_stale_pipes(self._run_dir, spec.name)
        slot = _Slot(spec)
        try:
            self._spawn(slot)
        except OSError as error:
            raise StartError(
                f"can not start {spec.name} (python -m {spec.module}): {error}; check free memory "
                "and the limits on processes and open files"
            ) from error
        self._slots[spec.name] = slot

    def stop_slot(self, slot: str, grace_s: float = 5.0) -> bool:
        """End a slot's child (SIGTERM, after `grace_s` SIGKILL) and do not start it again.

        Returns:
            Whether its ChildExited follows; False when no child was there.
        """
        found = self._slots.get(slot)
        if found is None:
            return False
        found.stopping = True
        found.respawn_at = None
        if found.child is None:
            del self._slots[slot]
            return False
        if found.drain_until is None:
            found.child.signal(signal.SIGTERM)
            found.kill_at = self._now() + grace_s
        return True

    def set_args(self, slot: str, args: tuple[str, ...]) -> None:
        """Give a slot's next children other arguments; the one that runs keeps its own."""
        found = self._slots.get(slot)
        if found is not None:
            found.spec = replace(found.spec, args=args)

    def kill(self, slot: str) -> None:
        """Kill a slot's child at once; it is started again as after any death."""
        found = self._slots.get(slot)
        if found is not None and found.child is not None:
            found.child.signal(signal.SIGKILL)

    def mark_ready(self, slot: str) -> None:
        """The child works: its next death counts as the first."""
        if slot in self._slots:
            self._slots[slot].backoff_s = FIRST_BACKOFF_S

    def incarnation(self, slot: str) -> WorkerIncarnation | None:
        """The running incarnation of a slot; None between two."""
        child = self._running(slot)
        return None if child is None else child.incarnation

    def pid(self, slot: str) -> int | None:
        """The process id of a slot's child; None when none runs."""
        child = self._running(slot)
        return None if child is None else child.pid

    # --- messages -----------------------------------------------------------------------------

    def send(self, slot: str, data: bytes) -> bool:
        """Queue a message for the running incarnation of a slot, in order.

        Returns:
            False when no child runs there, or `MAX_BACKLOG_*` is reached; nothing was kept then.
        """
        found = self._slots.get(slot)
        if found is None or found.child is None or found.drain_until is not None:
            return False
        if not found.backlog and found.child.pipe.send(data):
            return True
        full = len(found.backlog) >= MAX_BACKLOG_MESSAGES
        if full or found.backlog_bytes + len(data) > MAX_BACKLOG_BYTES:
            return False
        found.backlog.append(data)
        found.backlog_bytes += len(data)
        if found.retry_at is None:
            found.retry_at = self._now() + RETRY_S
        return True

    def events(self) -> list[PoolEvent]:
        """What happened since the last call, oldest first."""
        found = list(self._events)
        self._events.clear()
        return found

    # --- time ---------------------------------------------------------------------------------

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due."""
        times = [at for slot in self._slots.values() if (at := slot.next_timeout()) is not None]
        return min(times, default=None)

    def handle_timeout(self, now: float) -> None:
        """Respawn, retry, kill and finish what is due."""
        for slot in list(self._slots.values()):
            if slot.retry_at is not None and slot.retry_at <= now:
                self._flush(slot, now)
            if slot.kill_at is not None and slot.kill_at <= now:
                slot.kill_at = None
                self.kill(slot.spec.name)
            if slot.drain_until is not None:
                self._finish_when_drained(slot, now)
            if slot.respawn_at is not None and slot.respawn_at <= now:
                self._respawn(slot, now)

    def close(self, grace_s: float) -> None:
        """End all children: SIGTERM, at most `grace_s` seconds for all, then SIGKILL.

        Blocks for at most about `grace_s`. Their last messages are read into `events`, sockets
        and their files removed. May be called again.
        """
        if self._death_write < 0:
            return
        alive = [slot.child for slot in self._slots.values() if slot.child is not None]
        for child in alive:
            child.signal(signal.SIGTERM)
        _wait_for_exits(alive, grace_s)
        for child in alive:
            child.signal(signal.SIGKILL)
        for slot in list(self._slots.values()):
            slot.stopping = True
            if slot.child is not None:
                self._finish(slot, slot.child, self._now())
        self._slots.clear()
        self._loop.remove_timer_source(self.handle_timeout)
        os.close(self._death_write)
        os.close(self._death_read)
        self._death_write = -1

    # --- inside -------------------------------------------------------------------------------

    def _running(self, slot: str) -> Child | None:
        found = self._slots.get(slot)
        return None if found is None or found.drain_until is not None else found.child

    def _spawn(self, slot: _Slot) -> None:
        incarnation = self._next_incarnation()
        child = Child(slot.spec, self._run_dir, incarnation, self._death_read)
        slot.child = child
        self._loop.add_reader(child.pid_fd, lambda: self._on_exit(slot, child))
        self._loop.add_reader(child.pipe.readable, lambda: self._read(slot, child))
        self._loop.add_reader(child.monitor.readable, lambda: self._on_monitor(slot, child))
        self._events.append(ChildStarted(slot.spec.name, incarnation))

    def _respawn(self, slot: _Slot, now: float) -> None:
        slot.respawn_at = None
        try:
            self._spawn(slot)
        except (OSError, StartError) as error:
            wait_s = self._take_backoff(slot)
            log.warning(
                "child_not_started slot=%s again_in_s=%s error=%s", slot.spec.name, wait_s, error
            )
            slot.respawn_at = now + wait_s

    def _take_backoff(self, slot: _Slot) -> float:
        wait_s = slot.backoff_s
        slot.backoff_s = min(MAX_BACKOFF_S, 2 * wait_s)
        return wait_s

    def _read(self, slot: _Slot, child: Child) -> None:
        while (data := child.pipe.recv()) is not None:
            self._events.append(ChildMessage(slot.spec.name, child.incarnation, data))

    def _flush(self, slot: _Slot, now: float) -> None:
        slot.retry_at = None
        while slot.backlog and slot.child is not None:
            if not slot.child.pipe.send(slot.backlog[0]):
                slot.retry_at = now + RETRY_S
                return
            slot.backlog_bytes -= len(slot.backlog.popleft())

    def _on_monitor(self, slot: _Slot, child: Child) -> None:
        if child.is_drained() and slot.drain_until is not None:
            self._finish_when_drained(slot, self._now())

    def _on_exit(self, slot: _Slot, child: Child) -> None:
        self._loop.remove_reader(child.pid_fd)
        slot.kill_at = slot.retry_at = None
        slot.backlog.clear()
        slot.backlog_bytes = 0
        now = self._now()
        drained = child.is_drained()
        slot.drain_until = now + (DRAIN_S if child.was_connected else DRAIN_UNCONNECTED_S)
        if drained:
            self._finish_when_drained(slot, now)

    def _finish_when_drained(self, slot: _Slot, now: float) -> None:
        child = slot.child
        if child is None or slot.drain_until is None:
            return
        if child.is_drained() or now >= slot.drain_until:
            self._finish(slot, child, now)

    def _finish(self, slot: _Slot, child: Child, now: float) -> None:
        self._read(slot, child)
        for source in (child.pid_fd, child.pipe.readable, child.monitor.readable):
            self._loop.remove_reader(source)
        returncode = child.reap()
        child.close()
        slot.child = slot.drain_until = slot.kill_at = slot.retry_at = None
        wait_s = None if slot.stopping else self._take_backoff(slot)
        if wait_s is None:
            self._slots.pop(slot.spec.name, None)
        else:
            slot.respawn_at = now + wait_s
        self._events.append(ChildExited(slot.spec.name, child.incarnation, returncode, wait_s))


def _wait_for_exits(children: list[Child], grace_s: float) -> None:
    poller = select.poll()
    waiting = {child.pid_fd for child in children}
    for pid_fd in waiting:
        poller.register(pid_fd, select.POLLIN)
    until = time.monotonic() + grace_s
    while waiting and (left_s := until - time.monotonic()) > 0:
        for pid_fd, _ in poller.poll(left_s * 1000):
            poller.unregister(pid_fd)
            waiting.discard(pid_fd)
