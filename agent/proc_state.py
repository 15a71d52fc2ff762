"""What the system says of a process: whether it is stopped, and how much CPU time it has used.

Read from /proc/<pid>/stat, which answers at once whatever the process does: one that holds its
GIL, or is stopped, could not answer for itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

#: Fields of /proc/<pid>/stat after the name, from 0 (proc(5) counts from 1, with pid and name).
_STATE, _UTIME, _STIME = 0, 11, 12
#: A job control stop, and a stop by a tracer.
_STOPPED = frozenset("Tt")
#: It has ended and only waits to be reaped.
_ENDED = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One look at a process.

    Attributes:
        letter: R running, S sleeping, D waiting for a device, T stopped, t traced.
        cpu_s: user and system time of all its threads since its start, in seconds.
    """

    letter: str
    cpu_s: float

    @property
    def is_stopped(self) -> bool:
        """Whether it runs no more until it is continued."""
        return self.letter in _STOPPED


def parse_stat(text: str, ticks_per_s: int) -> ProcessState | None:
    """The state in one line of /proc/<pid>/stat; None when it has ended or the line is none.

    Args:
        ticks_per_s: the system's SC_CLK_TCK.

    Source: proc(5). The name in parentheses may itself have spaces and parentheses, so the fields
    are counted from the last one.
    """
    _, closing, rest = text.rpartition(")")
    fields = rest.split()
    if not closing or len(fields) <= _STIME or fields[_STATE] in _ENDED:
        return None
    user, system = fields[_UTIME], fields[_STIME]
    if not (user.isdecimal() and system.isdecimal()):
        return None
    return ProcessState(letter=fields[_STATE], cpu_s=(int(user) + int(system)) / ticks_per_s)


def read_process(pid: int, proc: Path = Path("/proc")) -> ProcessState | None:
    """The present state of a process; None when it has ended."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return parse_stat(text, os.sysconf("SC_CLK_TCK"))
