"""The shape of turns: when a chunk runs beside steps, and how long it may be. Pure.

A turn is a prefill chunk, as many further ones as fit whole into the turn target, and then a decode
step: a decoding stream waits for no longer than the target. Further ones go first too when prefill
would get less than a quarter of the busy time. A prompt of class 0 that is alone is read in longer
chunks.
"""

from __future__ import annotations

from agent.worker.chunk_grid import last_end

#: Chunks are bit-equal to each other from 2 to 256 tokens, where they need not keep to a grid.
MAX_CHUNK_TOKENS = 128
#: Of a prompt of class 0 that nobody is beside: a twelfth faster than two of the half (512 tokens
#: are hardly faster, and take twice the memory for scores).
LONE_CHUNK_TOKENS = 256
#: Whoever comes meanwhile waits for no longer; machines that are slower stay at the shorter ones.
LONE_CHUNK_S = 0.5
#: Shorter chunks cost prefill more than half its speed.
MIN_CHUNK_TOKENS = 32
#: Beside a sequence of class 0, whose tokens someone reads as they come.
MIN_CHUNK_BESIDE_INTERACTIVE = 16
#: A chunk of one would round like a step.
LEAST_SPLIT_TOKENS = 2
#: Products go through rows in tiles of this or twice as many, as the matrix is, and a tile with one
#: row rounds like a step (found at 65 rows of the toy model and 129 of SmolLM2).
ROW_TILE = 64
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
        long_chunks: whether the runner takes chunks of `LONE_CHUNK_TOKENS`.

    Attributes:
        step_s: smoothed seconds of a step; 0 is not yet measured.
        chunk_rate: smoothed tokens/s of chunks; 0 is not yet measured.
    """

    def __init__(self, *, grid: bool = False, long_chunks: bool = False) -> None:
        self._grid = grid
        self._long_chunks = long_chunks and not grid
        self.step_s = 0.0
        self.chunk_rate = 0.0
        #: Busy time of chunks since the last step; None when there was none.
        self._turn_s: float | None = None
        #: Busy time of both kinds since prefill last began to wait.
        self._chunks_s = 0.0
        self._steps_s = 0.0

    def chunk_is_next(self, *, decoding: bool) -> bool:
        """Whether prefill, which waits, has the next unit of work.

        Args:
            decoding: a step could run as well.
        """
        if not decoding or self._turn_s is None:
            return True
        fits = self.step_s and self._room_s * self.chunk_rate >= MAX_CHUNK_TOKENS
        return bool(fits) or self._chunks_s * STEPS_TO_CHUNKS < self._steps_s

    def no_prefill(self) -> None:
        """None waits for prefill."""
        self._turn_s = None
        self._chunks_s = self._steps_s = 0.0

    def chunk_tokens(self, past: int, stop: int, beside: int | None, *, lone: bool = False) -> int:
        """How long the next chunk is.

        Args:
            past: tokens before it.
            stop: where its stretch ends.
            beside: the best class of those that decode; None when none does.
            lone: it is of class 0, and nobody else is there.
        """
        size = self._longest(lone=lone) if beside is None else self._fitting(beside)
        left = (last_end(past, stop) if self._grid else stop) - past
        size = min(left, size)
        if 0 < left - size < LEAST_SPLIT_TOKENS:
            size -= LEAST_SPLIT_TOKENS - (left - size)
        if size > 1 and size % ROW_TILE == 1:
            size -= 1 if size < left else LEAST_SPLIT_TOKENS
        return size

    def ran_chunk(self, tokens: int, elapsed_s: float) -> None:
        """A chunk ran."""
        if tokens >= MIN_CHUNK_BESIDE_INTERACTIVE and elapsed_s > 0:
            self.chunk_rate = _smooth(self.chunk_rate, tokens / elapsed_s)
        self._turn_s = (self._turn_s or 0.0) + elapsed_s
        self._chunks_s += elapsed_s

    def ran_step(self, elapsed_s: float) -> None:
        """A step ran."""
        worked_s = min(elapsed_s, LONGEST_STEP_S)
        self.step_s = _smooth(self.step_s, worked_s)
        self._turn_s = None
        self._steps_s += worked_s

    def _longest(self, *, lone: bool) -> int:
        quick = self.chunk_rate * LONE_CHUNK_S >= LONE_CHUNK_TOKENS
        return LONE_CHUNK_TOKENS if lone and quick and self._long_chunks else MAX_CHUNK_TOKENS

    def _fitting(self, beside: int) -> int:
        """What still fits beside a step into the turn target."""
        least = MIN_CHUNK_TOKENS if beside else MIN_CHUNK_BESIDE_INTERACTIVE
        return min(max(int(self._room_s * self.chunk_rate), least), MAX_CHUNK_TOKENS)

    @property
    def _room_s(self) -> float:
        """What chunks may still take of this turn; may be negative."""
        target_s = max(TURN_TARGET_S, 2 * self.step_s)
        return target_s - self.step_s - (self._turn_s or 0.0)


def _smooth(old: float, new: float) -> float:
    return new if not old else old + _NEWEST * (new - old)
