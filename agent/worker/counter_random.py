"""Random numbers without a state: a word is a function of what it is for.

A stream that moves to another node, or is replayed there, draws what it would have drawn, since a
draw depends on the seed, the position and the token id alone, and on nothing that ran before it.

Source: SplitMix64 from Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014. Its n-th output is `mix(state + n * GAMMA)`, so any of them costs the same.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int64]

GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_MASK = 2**64 - 1


def word(state: int, index: int) -> int:
    """The `index`-th output (from 0) of SplitMix64 started at `state`."""
    z = (state + (index + 1) * GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * _MULTIPLIER_1) & _MASK
    z = ((z ^ (z >> 27)) * _MULTIPLIER_2) & _MASK
    return z ^ (z >> 31)


def words(state: int, indices: Ids) -> Words:
    """The same for many indices at once.

    Args:
        state: u64.
        indices: int64 `[N]`, from 0.

    Returns:
        uint64 `[N]`.
    """
    z = indices.astype(np.uint64)
    z += np.uint64(1)
    z *= np.uint64(GAMMA)
    return _mixed(z, state)


def first_words(state: int, count: int) -> Words:
    """The outputs of indices 0 to `count - 1`."""
    return _mixed(_multiples(count).copy(), state)


def _mixed(z: Words, state: int) -> Words:
    """`mix(z + state)`, in the place of `z`."""
    z += np.uint64(state)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MULTIPLIER_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MULTIPLIER_2)
    z ^= z >> np.uint64(31)
    return z


@lru_cache(maxsize=2)
def _multiples(count: int) -> Words:
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA)


def position_state(seed: int, position: int) -> int:
    """The state from which the draws of one position come.

    Args:
        seed: u64 of the answer.
        position: of the token to draw, counted from the start of the context.
    """
    return word(word(seed, 0), position)


def gumbel(state: int, indices: Ids) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for each index.

    The uniform has 53 bits and is never 0 or 1, so the noise is always finite (-3.7 to 37.4).
    """
    uniform = (words(state, indices) >> np.uint64(11)).astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-53
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def least_word(noise: float) -> int:
    """No index whose word is below this has Gumbel noise above `noise`."""
    uniform = math.exp(-math.exp(-noise))
    # Some units of the 53 bits less, for what rounding may have added.
    return min(max(int(uniform * 2**53) - 16, 0), 2**53 - 1) << 11
