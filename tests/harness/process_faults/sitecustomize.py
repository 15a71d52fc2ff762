"""Faults that a test causes from outside in a worker whose PYTHONPATH has this folder.

Python imports this at its start. For FAULT_S seconds, and without ever letting go of the GIL,

    SIGUSR1  keeps the main thread computing
    SIGUSR2  lets it sleep

and then one line of JSON on stderr says that it is over.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from types import FrameType

SECONDS = int(os.environ.get("FAULT_S", "60"))


class _Over(Exception):
    """The time is over."""


def _say_over() -> None:
    os.write(2, b'{"event": "fault_over"}\n')


def _raise_over(number: int, frame: FrameType | None) -> None:
    raise _Over


def _compute(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGALRM, _raise_over)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        # 2**60 ways to fail; matching looks for signals now and then, but keeps the GIL.
        re.match(r"(?:a|a)+$", "a" * 60 + "b")
    except _Over:
        _say_over()


def _sleep(number: int, frame: FrameType | None) -> None:
    ctypes.PyDLL(None).sleep(SECONDS)
    _say_over()


if "agent.worker" in sys.orig_argv:
    signal.signal(signal.SIGUSR1, _compute)
    signal.signal(signal.SIGUSR2, _sleep)
