"""Random numbers without a state: a word is a function of what it is for.

A stream that moves to another node, or is replayed there, draws what it would have drawn, since a
draw depends on the seed, the position and the token id alone, and on nothing that ran before it.

Source: SplitMix64 from Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014. Its n-th output is `mix(state + n * GAMMA)`, so any of them costs the same.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int64]

GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_MASK = 2**64 - 1
#: Words computed at a time: two blocks fit the cache of a core.
_BLOCK = 32768


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
    z += np.uint64(state)
    spare = np.empty_like(z)
    _mix_all_but_last(z, spare)
    _xor_shifted(z, 31, spare)
    return z


class _Scratch(threading.local):
    """Each thread's two blocks: fresh ones would cost more in page faults than the arithmetic."""

    def __init__(self) -> None:
        self.blocks = np.empty((2, _BLOCK), np.uint64)


_scratch = _Scratch()


def indices_from(state: int, count: int, least: int) -> Ids:
    """The indices below `count` whose word is at least `least`, ascending, and maybe others.

    The last step of the mix leaves a word's high 31 bits as they are, so it is left out, and only
    those bits are compared.
    """
    border = np.uint64(least >> 33 << 33)
    multiples = _multiples(count)
    z, spare = _scratch.blocks
    found = []
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        block, other = z[: stop - start], spare[: stop - start]
        np.add(multiples[start:stop], np.uint64(state), out=block)
        _mix_all_but_last(block, other)
        found.append(np.flatnonzero(block >= border) + start)
    return np.concatenate(found)


def _mix_all_but_last(z: Words, spare: Words) -> None:
    """In the place of `z`; `spare` is as large."""
    _xor_shifted(z, 30, spare)
    z *= np.uint64(_MULTIPLIER_1)
    _xor_shifted(z, 27, spare)
    z *= np.uint64(_MULTIPLIER_2)


def _xor_shifted(z: Words, bits: int, spare: Words) -> None:
    np.right_shift(z, np.uint64(bits), out=spare)
    z ^= spare


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
