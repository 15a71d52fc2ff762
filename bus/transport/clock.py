"""The one clock of the fleet's code. Only adapters read it; cores get its value as `now`."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since the machine started, with the time it was suspended (CLOCK_BOOTTIME).

    A lease must also run out while a laptop sleeps, which CLOCK_MONOTONIC would not show.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
