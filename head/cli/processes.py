"""The processes of a fleet on this machine, as the system shows them (Linux, /proc).

What supervisord started carries its mark and the state folder in its environment, also after
supervisord died; so what is left of an earlier run can be found and ended by its process id.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: What supervisord puts into the environment of everything that it starts; and it itself.
_MARK = b"SUPERVISOR_ENABLED=1"
_KEEPER = b"supervisor.supervisord"
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process; the start time tells it from a later one with the same number."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether it is still this process, and no zombie."""
        found = _stat(self.pid)
        return found is not None and found[2] == self.started and found[0] != "Z"


def process(pid: int) -> ProcessId | None:
    """The process that has this number now."""
    found = _stat(pid)
    return None if found is None else ProcessId(pid, found[2])


def descendants(pid: int) -> list[ProcessId]:
    """All children of a process, and theirs."""
    children: dict[int, list[ProcessId]] = {}
    for other in _pids():
        found = _stat(other)
        if found is not None:
            children.setdefault(found[1], []).append(ProcessId(other, found[2]))
    out: list[ProcessId] = []
    todo = list(children.get(pid, []))
    while todo:
        child = todo.pop()
        out.append(child)
        todo += children.get(child.pid, [])
    return out


def await_begun(keeper: int, timeout_s: float) -> None:
    """Wait until all children of supervisord have become what they are to be.

    Between fork and exec a child still has supervisord's signal handlers, and loses a SIGTERM.
    """
    deadline = time.monotonic() + timeout_s
    while any(_KEEPER in _words(each.pid) for each in descendants(keeper)):
        if time.monotonic() >= deadline:
            return
        # It takes a millisecond, and the system tells nobody of an exec.
        time.sleep(0.005)


def services_of(state: Path) -> list[ProcessId]:
    """What supervisord ever started for a state folder and still runs, and itself."""
    folder = b"SUPERFLUID_STATE=" + os.fsencode(state)
    found = []
    for pid in _pids():
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        words = _words(pid)
        ours = folder in environment and (_MARK in environment or _KEEPER in words)
        known = process(pid) if ours else None
        if known is not None and known.alive and pid != os.getpid():
            found.append(known)
    return found


def wait_ended(processes: Iterable[ProcessId], timeout_s: float) -> list[ProcessId]:
    """Wait until they have ended; gives those that have not."""
    deadline = time.monotonic() + timeout_s
    left = []
    for each in processes:
        try:
            descriptor = os.pidfd_open(each.pid)
        except OSError:
            continue
        try:
            remaining = max(0.0, deadline - time.monotonic())
            # Opened before alive is asked: the descriptor can not be of a later process then.
            if each.alive and not select.select([descriptor], [], [], remaining)[0]:
                left.append(each)
        finally:
            os.close(descriptor)
    return left


def end(processes: Iterable[ProcessId], *, grace_s: float) -> list[ProcessId]:
    """Ask them to end, then kill; gives those that are there even so."""
    left = _signal(processes, signal.SIGTERM)
    left = wait_ended(left, grace_s)
    return wait_ended(_signal(left, signal.SIGKILL), grace_s)


def _signal(processes: Iterable[ProcessId], number: signal.Signals) -> list[ProcessId]:
    told = []
    for each in processes:
        if each.alive:
            try:
                os.kill(each.pid, number)
            except ProcessLookupError:
                continue
            told.append(each)
    return told


def command_line(pid: int) -> list[str]:
    """The words of a process's command line; empty when it has ended."""
    return [os.fsdecode(word) for word in _words(pid)]


def _words(pid: int) -> list[bytes]:
    """The command line of a process; empty when it has ended."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State letter, parent and start time of a process (proc(5), fields 3, 4 and 22)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[19])
