"""Next tokens from logits, for all rows of a batch.

Order: temperature, then what stays a candidate (top-k, min-p, top-p), then the draw. All three
cuts keep a head of the tokens in falling order of probability, so they can be taken in any order;
min-p and top-p are measured against the softmax over the whole vocabulary. Equal logits rank by
the lower token id.

The draw is an argmax over candidates of `logit / temperature + Gumbel(seed, position, token)`,
which is a draw from the softmax over the candidates. A row's result depends on nothing but its
own logits, parameters and position: not on its neighbours, nor on what was drawn before.

Source: Gumbel, "Statistical theory of extreme values", 1954 (the Gumbel-max trick).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agent.worker.counter_random import Ids, gumbel, position_state
from bus.messages.link import SamplingParams

Logits = npt.NDArray[np.float32]

#: Temperatures below are argmax: float32 can not hold logits divided by less.
GREEDY_BELOW = 1e-6

#: Candidates that top-p looks at first; four times as many each time they are not enough.
_FIRST_POOL = 256


def sample(
    logits: Logits, params: Sequence[SamplingParams], positions: Sequence[int]
) -> list[int | None]:
    """One token for each row.

    Args:
        logits: float32 `[B, vocab]`.
        params: of each row.
        positions: of the token to draw in each row, counted from the start of its context.

    Returns:
        A token id for each row; None where logits are NaN, +infinity, or all -infinity.
    """
    best = logits.argmax(axis=1)
    # argmax stops at a NaN and finds +infinity, so this one value tells about the whole row.
    finite = np.isfinite(logits[np.arange(len(best)), best])
    tokens: list[int | None] = []
    for row, (token, rule) in enumerate(zip(best.tolist(), params, strict=True)):
        if not finite[row]:
            tokens.append(None)
        elif rule.temperature < GREEDY_BELOW:
            tokens.append(token)
        else:
            tokens.append(_draw(logits[row], token, rule, positions[row]))
    return tokens


def _draw(logits: Logits, best: int, rule: SamplingParams, position: int) -> int:
    scaled = logits - logits[best]
    with np.errstate(over="ignore"):  # far below the best: -infinity is what is meant
        scaled /= np.float32(rule.temperature)
    ids = candidates(scaled, rule)
    score = gumbel(position_state(rule.seed, position), ids)
    score += scaled[ids]
    return int(ids[score.argmax()])


def candidates(scaled: Logits, rule: SamplingParams) -> Ids:
    """The token ids that a draw may give.

    Args:
        scaled: float32 `[vocab]`, logits over temperature with the largest at 0.
        rule: `top_k`, `min_p` and `top_p` count.

    Returns:
        int64 `[N]`, at least one, in no promised order.
    """
    vocab = len(scaled)
    count = min(rule.top_k, vocab) or vocab
    if rule.min_p > 0.0:
        floor = np.float32(np.log(rule.min_p))
        count = min(count, int(np.count_nonzero(scaled >= floor)))
    if rule.top_p < 1.0:
        return _nucleus(scaled, rule.top_p, count)
    return largest(scaled, count)


def _nucleus(scaled: Logits, top_p: float, count: int) -> Ids:
    """The fewest of the `count` likeliest tokens that have `top_p` of all probability together."""
    total = np.exp(scaled).sum(dtype=np.float64)
    pool = _FIRST_POOL
    while True:
        pool = min(pool, count)
        ids = largest(scaled, pool)
        ids = ids[np.lexsort((ids, -scaled[ids]))]
        mass = np.cumsum(np.exp(scaled[ids]), dtype=np.float64)
        if pool == count or mass[-1] >= top_p * total:
            needed = int(np.searchsorted(mass, top_p * total)) + 1
            return ids[:needed]
        pool *= 4


def largest(values: Logits, count: int) -> Ids:
    """Indices of the `count` largest values, among equals the lower index; in no promised order."""
    if count >= len(values):
        return np.arange(len(values))
    border = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > border)
    ties = np.flatnonzero(values == border)
    return np.concatenate((above, ties[: count - len(above)]))
