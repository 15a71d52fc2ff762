"""Rotary position tables: cosines and sines of every position.

A position turns pair j of a head by `position * base**(-2j / head_dim)`. Models with long windows
change that in one of three ways: all frequencies by one factor (linear), each by its own (a tensor
of the file, Llama 3), or the slow ones by a factor and the fast ones not at all (YaRN).

Sources: Su et al., "RoFormer" (arXiv:2104.09864), section 3.4; Peng et al., "YaRN"
(arXiv:2309.00071), section 3.2 and equation 22.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.models.blocks import FloatArray

Doubles = npt.NDArray[np.float64]

#: Rows of a table that are computed at a time.
_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """YaRN's figures.

    Attributes:
        factor: how much longer the window is than the one the model was trained with.
        original: that window, in tokens.
        fast: pairs that turn more often than this over the original window keep their frequency.
        slow: pairs that turn less often than this are slowed down by `factor`.
        attention: multiplies the length of the rotated vectors, beside YaRN's own factor.
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    attention: float = 1.0

    def slowed(self, base: float, head_dim: int) -> Doubles:
        """How far each pair is slowed down, `[head_dim / 2]`, from 0 (not at all) to 1."""
        first = math.floor(self._pair(self.fast, base, head_dim))
        last = math.ceil(self._pair(self.slow, base, head_dim))
        low, high = max(first, 0), min(last, head_dim - 1)
        pairs = np.arange(head_dim // 2, dtype=np.float64)
        return np.clip((pairs - low) / max(high - low, 0.001), 0.0, 1.0)

    def _pair(self, turns: float, base: float, head_dim: int) -> float:
        """The pair, not rounded, that turns so often over the original window."""
        longest = self.original / (turns * 2 * math.pi)
        return head_dim * math.log(longest) / (2 * math.log(base))

    @property
    def magnitude(self) -> float:
        """What both tables are multiplied with."""
        return self.attention * (1 + 0.1 * math.log(self.factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """How the layers of one kind rotate.

    Attributes:
        base: of the frequencies.
        scale: positions are divided by it, 1 for none.
        yarn: None for none; then `scale` is 1.
    """

    base: float
    scale: float = 1.0
    yarn: Yarn | None = None

    def frequencies(self, head_dim: int, factors: FloatArray | None = None) -> Doubles:
        """Radians that each pair turns from one position to the next, `[head_dim / 2]`.

        Args:
            head_dim: even.
            factors: each frequency is divided by its own.
        """
        exponent = -np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
        plain = self.base**exponent
        if factors is not None:
            plain = plain / factors
        if self.yarn is None:
            return plain / self.scale
        slowed = self.yarn.slowed(self.base, head_dim)
        return plain * (1 - slowed) + plain / self.yarn.factor * slowed

    def tables(
        self, head_dim: int, positions: int, factors: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Cosines and sines, float32 `[positions, head_dim / 2]` each."""
        frequency = self.frequencies(head_dim, factors)
        magnitude = 1.0 if self.yarn is None else self.yarn.magnitude
        cosines = np.empty((positions, head_dim // 2), np.float32)
        sines = np.empty_like(cosines)
        for start in range(0, positions, _ROWS):
            rows = slice(start, min(start + _ROWS, positions))
            angle = np.arange(rows.start, rows.stop, dtype=np.float64)[:, None] * frequency[None]
            cosines[rows] = np.cos(angle) * magnitude
            sines[rows] = np.sin(angle) * magnitude
        return cosines, sines
