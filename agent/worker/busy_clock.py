"""How long chunks and steps were under way, where several are at once. Pure.

Time in which there are units of both kinds is shared out among them, so that both times together
are never more than what has passed, and tokens by time are what the whole chain does.
"""

from __future__ import annotations


class BusyClock:
    """Owned by a driver; told when a unit begins and ends.

    Attributes:
        prefill_s: seconds of chunks.
        decode_s: seconds of steps.
    """

    def __init__(self) -> None:
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self._chunks = 0
        self._steps = 0
        self._at = 0.0

    def chunk(self, change: int, now: float) -> None:
        """One more (1) or one less (-1) chunk is under way."""
        self._pass(now)
        self._chunks += change

    def step(self, change: int, now: float) -> None:
        """One more (1) or one less (-1) step is under way."""
        self._pass(now)
        self._steps += change

    def stop(self, now: float) -> None:
        """Nothing is under way any more."""
        self._pass(now)
        self._chunks = self._steps = 0

    def _pass(self, now: float) -> None:
        units = self._chunks + self._steps
        if units:
            each_s = (now - self._at) / units
            self.prefill_s += self._chunks * each_s
            self.decode_s += self._steps * each_s
        self._at = now
