"""The shape of turns: when a chunk runs beside steps, and how long it may be. Pure.

A turn is at most one prefill chunk and then a decode step, so a decoding stream waits for no
longer than the turn target. When chunks are so short that prefill would get less than a quarter of
the busy time, further ones go first.
"""

from __future__ import annotations

from agent.worker.chunk_grid import last_end

#: Chunks are bit-equal to each other from 2 to 128 tokens, and no faster beyond.
MAX_CHUNK_TOKENS = 128
#: Shorter chunks cost prefill more than half its speed.
MIN_CHUNK_TOKENS = 32
#: Beside a sequence of class 0, whose tokens someone reads as they come.
MIN_CHUNK_BESIDE_INTERACTIVE = 16
#: A chunk of one would round like a step.
LEAST_SPLIT_TOKENS = 2
#: A turn aims at this, or at two decode steps when they take longer.
TURN_TARGET_S = 0.050
#: Steps get at most so many times the time of chunks while prefill waits.
STEPS_TO_CHUNKS = 3.0
#: A step that seems to have taken longer was not at work all the time: the process was stopped.
LONGEST_STEP_S = 5.0
#: Weight of the newest measurement of chunk and step times.
_NEWEST = 0.25


class TurnPacer:
    """Owns what is known of speeds. Driven by the scheduler.

    Args:
        grid: whether chunks keep to the middles of blocks (`chunk_grid`).

    Attributes:
        step_s: smoothed seconds of a step; 0 is not yet measured.
        chunk_rate: smoothed tokens/s of chunks; 0 is not yet measured.
    """

    def __init__(self, *, grid: bool = False) -> None:
        self._grid = grid
        self.step_s = 0.0
        self.chunk_rate = 0.0
        self._chunk_was_last = False
        #: Busy time of both kinds since prefill last began to wait.
        self._chunks_s = 0.0
        self._steps_s = 0.0

    def chunk_is_next(self, *, decoding: bool) -> bool:
        """Whether prefill, which waits, has the next unit of work.

        Args:
            decoding: a step could run as well.
        """
        if not decoding or not self._chunk_was_last:
            return True
        return self._chunks_s * STEPS_TO_CHUNKS < self._steps_s

    def no_prefill(self) -> None:
        """None waits for prefill."""
        self._chunk_was_last = False
        self._chunks_s = self._steps_s = 0.0

    def chunk_tokens(self, past: int, stop: int, beside: int | None) -> int:
        """How long the next chunk is.

        Args:
            past: tokens before it.
            stop: where its stretch ends.
            beside: the best class of those that decode; None when none does.
        """
        size = MAX_CHUNK_TOKENS if beside is None else self._fitting(beside)
        left = (last_end(past, stop) if self._grid else stop) - past
        size = min(left, size)
        if 0 < left - size < LEAST_SPLIT_TOKENS:
            size -= LEAST_SPLIT_TOKENS - (left - size)
        return size

    def ran_chunk(self, tokens: int, elapsed_s: float) -> None:
        """A chunk ran."""
        if tokens >= MIN_CHUNK_BESIDE_INTERACTIVE and elapsed_s > 0:
            self.chunk_rate = _smooth(self.chunk_rate, tokens / elapsed_s)
        self._chunk_was_last = True
        self._chunks_s += elapsed_s

    def ran_step(self, elapsed_s: float) -> None:
        """A step ran."""
        self.step_s = _smooth(self.step_s, elapsed_s)
        self._chunk_was_last = False
        self._steps_s += min(elapsed_s, LONGEST_STEP_S)

    def _fitting(self, beside: int) -> int:
        """What fits beside a step into the turn target."""
        room_s = max(TURN_TARGET_S, 2 * self.step_s) - self.step_s
        least = MIN_CHUNK_TOKENS if beside else MIN_CHUNK_BESIDE_INTERACTIVE
        return min(max(int(room_s * self.chunk_rate), least), MAX_CHUNK_TOKENS)


def _smooth(old: float, new: float) -> float:
    return new if not old else old + _NEWEST * (new - old)
