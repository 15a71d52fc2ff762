"""Log-probabilities of drawn tokens, and the record that carries them.

They are of the softmax over the whole vocabulary after the grammar's mask, bias and penalties,
and before temperature and what follows it. A forbidden token has `LEAST_LOGPROB`, so that every
number is finite and can be written as JSON.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agent.worker.ranking import floor_of_largest, largest

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

#: Stands for everything below, minus infinity too.
LEAST_LOGPROB = -9999.0
#: Fills a record when the vocabulary has fewer tokens than were asked for; no token id.
NO_TOKEN = 2**32 - 1


def record(logits: Logits, best: int, chosen: int, others: int) -> bytes:
    """The record of one token, as in `TokenRun`.

    Args:
        logits: float32 `[vocab]` after bias and penalties; -infinity where forbidden, no NaN.
        best: id of the largest logit, which is finite.
        chosen: id of the drawn token.
        others: how many tokens beside the chosen one, the likeliest first, of equals the lower id.

    Returns:
        4 + 8 * `others` bytes, little-endian: the chosen token's log-probability (float32), then
        id (u32) and log-probability of each other one.
    """
    ids = _likeliest(logits, chosen, others) if others else np.empty(0, np.int64)
    chances = _log_softmax(logits, best, np.concatenate(([chosen], ids)))
    words = np.full(1 + 2 * others, NO_TOKEN, "<u4")
    numbers = words.view("<f4")
    numbers[2::2] = LEAST_LOGPROB
    numbers[0] = chances[0]
    words[1 : 1 + 2 * len(ids) : 2] = ids
    numbers[2 : 2 + 2 * len(ids) : 2] = chances[1:]
    return words.tobytes()


def _log_softmax(logits: Logits, best: int, ids: Ids) -> npt.NDArray[np.float64]:
    """Of `ids` alone, clamped to `LEAST_LOGPROB` and 0."""
    top = logits[best]
    with np.errstate(over="ignore"):  # far below the best: -infinity is what is meant
        weights = logits - top
    np.exp(weights, out=weights)
    total = float(weights.sum())
    chances = logits[ids].astype(np.float64) - float(top) - np.log(total)
    return np.asarray(np.clip(chances, LEAST_LOGPROB, 0.0), np.float64)


def _likeliest(logits: Logits, chosen: int, count: int) -> Ids:
    """The `count` largest but `chosen`, falling; fewer when the vocabulary has fewer."""
    ids = np.flatnonzero(logits >= floor_of_largest(logits, count + 1))
    ids = ids[largest(logits[ids], count + 1)]
    ids = ids[ids != chosen]
    found: Ids = ids[np.lexsort((ids, -logits[ids]))[:count]]
    return found
