"""A wall clock that a test sets while processes run whose PYTHONPATH has this folder.

Python imports this at its start. What the file WALL_OFFSET_FILE holds, in seconds, is added to
every reading of the wall clock, as if somebody had set the system's.
"""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path

FILE = Path(os.environ["WALL_OFFSET_FILE"])
_time, _time_ns, _gettime, _gettime_ns = (
    time.time,
    time.time_ns,
    time.clock_gettime,
    time.clock_gettime_ns,
)


def _offset_s() -> int:
    return int(FILE.read_text())


class _Datetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _Datetime:
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> _Datetime:
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)


def _clock_gettime(clock: int) -> float:
    return _gettime(clock) + (_offset_s() if clock == time.CLOCK_REALTIME else 0)


def _clock_gettime_ns(clock: int) -> int:
    jump_ns = _offset_s() * 10**9 if clock == time.CLOCK_REALTIME else 0
    return _gettime_ns(clock) + jump_ns


time.time = lambda: _time() + _offset_s()
time.time_ns = lambda: _time_ns() + _offset_s() * 10**9
time.clock_gettime = _clock_gettime
time.clock_gettime_ns = _clock_gettime_ns
datetime.datetime = _Datetime  # type: ignore[misc]
