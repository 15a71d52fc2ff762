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

from agent.worker.counter_random import (
    Ids,
    first_words,
    gumbel,
    least_word,
    position_state,
)
from bus.messages.sampling import SamplingParams

Logits = npt.NDArray[np.float32]

#: Temperatures below are argmax: float32 can not hold logits divided by less.
GREEDY_BELOW = 1e-6

#: Scaled logits from here on are looked at first; the best has 0.
_LIKELY = -8.0
#: Values in a group of which one maximum is kept while looking for the largest.
_GROUP = 32
#: More than float32 logarithms and sums are off by.
_ROUNDING = np.float32(0.01)


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
    state = position_state(rule.seed, position)
    ids = candidates(scaled, rule)
    return _draw_from_all(scaled, state) if ids is None else _best_of(scaled, state, ids)[0]


def _best_of(scaled: Logits, state: int, ids: Ids) -> tuple[int, float]:
    """The winner among `ids` and its score."""
    score = gumbel(state, ids)
    score += scaled[ids]
    best = int(score.argmax())
    return int(ids[best]), float(score[best])


def _draw_from_all(scaled: Logits, state: int) -> int:
    """The winner of the whole vocabulary, without the logarithms of those that can not win.

    An unlikely token wins only with noise beyond the best likely score less `_LIKELY`, and few
    words give so much.
    """
    winner, score = _best_of(scaled, state, np.flatnonzero(scaled >= _LIKELY))
    least = np.uint64(least_word(score - _LIKELY))
    lucky = np.flatnonzero(first_words(state, len(scaled)) >= least)
    if not len(lucky):
        return winner
    other, other_score = _best_of(scaled, state, lucky)
    return other if other_score > score else winner


def candidates(scaled: Logits, rule: SamplingParams) -> Ids | None:
    """The token ids that a draw may give.

    Args:
        scaled: float32 `[vocab]`, logits over temperature with the largest at 0.
        rule: `top_k`, `min_p` and `top_p` count.

    Returns:
        int64 `[N]`, at least one, in no promised order; None for all.
    """
    if not (rule.top_k or rule.min_p > 0.0 or rule.top_p < 1.0):
        return None
    floor = np.float32(np.log(rule.min_p)) if rule.min_p > 0.0 else np.float32(-np.inf)
    total = 0.0
    if rule.top_p < 1.0:
        total = float(np.exp(scaled).sum(dtype=np.float64))
        floor = max(floor, _nucleus_floor(total, rule.top_p, len(scaled)))
    if rule.top_k:
        floor = max(floor, _floor_of_largest(scaled, rule.top_k))
    ids = np.flatnonzero(scaled >= floor)
    count = min(rule.top_k or len(ids), len(ids))
    if rule.top_p < 1.0:
        mass = np.cumsum(np.exp(-np.sort(-scaled[ids])), dtype=np.float64)
        count = min(count, int(np.searchsorted(mass, rule.top_p * total)) + 1)
    return ids[largest(scaled[ids], count)]


def _nucleus_floor(total: float, top_p: float, vocab: int) -> np.float32:
    """Below this, `vocab` tokens together have less than what top-p leaves out."""
    left_out = max((1.0 - top_p) * total / vocab, float(np.finfo(np.float32).tiny))
    return np.float32(np.log(left_out)) - _ROUNDING


def _floor_of_largest(values: Logits, count: int) -> np.float32:
    """A value that at least `count` values reach, close to the `count`-th largest.

    The values are dealt into groups; `count` groups have a maximum at or above the `count`-th
    largest maximum.
    """
    groups = len(values) // _GROUP
    if count > groups:
        return np.float32(-np.inf)
    maxima = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
    floor: np.float32 = np.partition(maxima, -count)[-count]
    return floor


def largest(values: Logits, count: int) -> Ids:
    """Indices of the `count` largest values, among equals the lower index; in no promised order."""
    if count >= len(values):
        return np.arange(len(values))
    border = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > border)
    ties = np.flatnonzero(values == border)
    return np.concatenate((above, ties[: count - len(above)]))
