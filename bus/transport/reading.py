"""How much one reader takes at one go before the loop sees to clients, timers and other sockets."""

from __future__ import annotations

from collections.abc import Callable

#: A frame may hold work for tens of milliseconds in few bytes, and bytes may cost next to nothing:
#: both are counted, besides the frames.
MAX_FRAMES = 256
MAX_BYTES = 1024 * 1024
MAX_S = 0.015


class ReadBudget:
    """Of one go; the frame that goes past it is still taken whole.

    Args:
        now: the clock, seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._frames = 0
        self._bytes = 0
        self._until = now() + MAX_S

    def spend(self, size_bytes: int) -> bool:
        """A frame was read and seen to; False when no other is to be read at this go."""
        self._frames += 1
        self._bytes += size_bytes
        return self._frames < MAX_FRAMES and self._bytes < MAX_BYTES and self._now() < self._until
