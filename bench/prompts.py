"""Prompts of random tokens, the same for every runtime. Only numpy beside the standard library."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def prompts(vocab: int, count: int, tokens: int, seed: int) -> npt.NDArray[np.int32]:
    """`count` prompts of `tokens` ids below `vocab`: int32 `[count, tokens]`.

    No two prompts begin alike, of whatever count, length and seed: nothing is found in a cache.
    """
    rng = np.random.default_rng((seed, count, tokens))
    return rng.integers(0, vocab, (count, tokens)).astype(np.int32)
