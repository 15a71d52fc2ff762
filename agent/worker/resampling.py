"""Changes the rate of sound, a block at a time: a windowed sinc at exactly rational places.

Sample `n` of the new rate lies at `n * step / phases` of the old one, with `step / phases` the
quotient of the rates in lowest terms, so no place is ever rounded. There the old samples are summed
with a sinc that passes what both rates can hold, under a Kaiser window.

Source: Smith, "Digital Audio Resampling" (ccrma.stanford.edu/~jos/resample).
"""

from __future__ import annotations

from math import gcd

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

#: Zeros of the sinc on each side; more make the edge of the passed band steeper.
ZEROS = 24
#: Of the Kaiser window: what is not passed is some 80 dB down.
BETA = 8.0
#: Share of the lower rate's band that is passed.
PASSED = 0.95
#: Old samples that are kept back until as many new ones can be made at once.
_LEAST_BLOCK = 1 << 16


class Resampler:
    """Makes one stream of samples of another. Drive it with `push`, then `finish` once.

    Args:
        old_rate: samples a second that come.
        new_rate: samples a second that leave.
    """

    def __init__(self, old_rate: int, new_rate: int) -> None:
        common = gcd(old_rate, new_rate)
        self._phases, self._step = new_rate // common, old_rate // common
        self._same = old_rate == new_rate
        band = min(1.0, new_rate / old_rate) * PASSED
        self._half = int(np.ceil(ZEROS / band))
        self._filters = _filters(self._phases, self._half, band)
        #: Old samples that are still needed; the first of them is number `_first`, and those
        #: before the stream's beginning are zeros.
        self._kept: FloatArray = np.zeros(self._half, np.float32)
        self._first = -self._half
        self._given = 0
        self._taken = 0

    def push(self, samples: FloatArray) -> FloatArray:
        """Take samples of the old rate; gives those of the new one that can be made now."""
        if self._same:
            return samples
        self._taken += len(samples)
        self._kept = np.concatenate([self._kept, samples])
        if len(self._kept) < _LEAST_BLOCK:
            return np.zeros(0, np.float32)
        return self._make(self._first + len(self._kept) - self._half)

    def finish(self) -> FloatArray:
        """The rest: what is behind the last sample counts as silence."""
        if self._same:
            return np.zeros(0, np.float32)
        self._kept = np.concatenate([self._kept, np.zeros(self._half + 1, np.float32)])
        return self._make(self._taken)

    def _make(self, end: int) -> FloatArray:
        """The new samples that lie before old sample `end`."""
        last = -(-end * self._phases // self._step)
        count = max(0, last - self._given)
        made = np.zeros(count, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(self._kept, 2 * self._half)
        for offset in range(min(self._phases, count)):
            number = self._given + offset
            place, phase = divmod(number * self._step, self._phases)
            start = place - self._half + 1 - self._first
            rows = windows[start :: self._step][: -(-(count - offset) // self._phases)]
            made[offset :: self._phases] = rows @ self._filters[phase]
        self._given += count
        self._forget(self._given * self._step // self._phases - self._half + 1)
        return made

    def _forget(self, number: int) -> None:
        """Drop old samples before one."""
        gone = max(0, number - self._first)
        self._kept = self._kept[gone:].copy()
        self._first += gone


def _filters(phases: int, half: int, band: float) -> FloatArray:
    """Weights of the `2 * half` old samples around a place, by its phase: `[phases, 2 * half]`."""
    places = np.arange(phases)[:, None] / phases
    distance = np.arange(1 - half, half + 1)[None, :] - places
    window = np.i0(BETA * np.sqrt(np.clip(1 - (distance / half) ** 2, 0, 1))) / np.i0(BETA)
    weights = band * np.sinc(band * distance) * window
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)
