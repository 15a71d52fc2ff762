"""Next tokens from logits, for all rows of a batch.

Order: grammar mask, logit bias, penalties (a `DrawState` does these three), temperature, then what
stays a candidate (top-k, min-p, top-p), then the draw. All three cuts keep a head of the tokens in
falling order of probability, so they can be taken in any order; min-p and top-p are measured
against the softmax over the whole vocabulary. Equal logits rank by the lower token id.

The draw is an argmax over candidates of `logit / temperature + Gumbel(seed, position, token)`,
which is a draw from the softmax over the candidates. A row's result depends on nothing but its
own logits, state and position: not on its neighbours, nor on its place among them.

Source: Gumbel, "Statistical theory of extreme values", 1954 (the Gumbel-max trick).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agent.worker.counter_random import (
    Ids,
    first_words,
    gumbel,
    least_word,
    position_state,
)
from agent.worker.draw_state import DrawState
from agent.worker.logprobs import record
from agent.worker.ranking import floor_of_largest, largest
from bus.errors import ConstraintInvalid, Internal, Invalid, SuperfluidError
from bus.messages.sampling import SamplingParams

Logits = npt.NDArray[np.float32]

NON_FINITE_LOGITS = (
    "the model gave logits that are no numbers; if it does so again, check the model folder with "
    "`sfctl model ls` or import the model again"
)
NOTHING_ALLOWED = (
    "the constraint allows no token at this place of the answer; "
    "change the schema or grammar so that this model's tokens can go on"
)
OUT_OF_RANGE = "penalties and logit bias took the logits out of range; use smaller ones"

#: Scaled logits from here on are looked at first; the best has 0.
_LIKELY = -8.0
#: More than float32 logarithms and sums are off by.
_ROUNDING = np.float32(0.01)


class Drawn(NamedTuple):
    """What one row gave.

    Attributes:
        token: the id; None when there is an error.
        logprobs: its record when the request asks for one, else empty; see `logprobs.record`.
        error: why there is no token.
    """

    token: int | None
    logprobs: bytes = b""
    error: SuperfluidError | None = None


def sample(logits: Logits, states: Sequence[DrawState], positions: Sequence[int]) -> list[Drawn]:
    """One token for each row. A row that can not be drawn says why and harms no other.

    Args:
        logits: float32 `[B, vocab]`; not changed.
        states: of each row; they are not advanced.
        positions: of the token to draw in each row, counted from the start of its context.
    """
    best = logits.argmax(axis=1)
    # argmax stops at a NaN and finds +infinity, so this one value tells about the whole row.
    finite = np.isfinite(logits[np.arange(len(best)), best]).tolist()
    return [
        _sample_row(logits[row], token, state, positions[row])
        if finite[row]
        else Drawn(None, b"", state.error or Internal(NON_FINITE_LOGITS))
        for row, (token, state) in enumerate(zip(best.tolist(), states, strict=True))
    ]


def _sample_row(logits: Logits, best: int, state: DrawState, position: int) -> Drawn:
    """Draw from a row whose largest logit, at `best`, is finite."""
    if state.error is not None:
        return Drawn(None, b"", state.error)
    if state.adjusts:
        if len(logits) != state.vocab:
            return Drawn(None, b"", _wrong_width(len(logits), state.vocab))
        logits = state.adjusted(logits)
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            forbidden = logits[best] == -np.inf
            error = ConstraintInvalid(NOTHING_ALLOWED) if forbidden else Invalid(OUT_OF_RANGE)
            return Drawn(None, b"", error)
    params = state.params
    token = best if state.greedy else _draw(logits, best, params, position)
    if not params.logprobs:
        return Drawn(token)
    return Drawn(token, record(logits, best, token, params.logprobs - 1))


def _wrong_width(width: int, vocab: int) -> Internal:
    return Internal(
        f"the model gave {width} logits and its vocabulary has {vocab}; import the model again"
    )


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
        floor = max(floor, floor_of_largest(scaled, rule.top_k))
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
