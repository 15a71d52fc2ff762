"""Next tokens from logits, for all rows of a batch.

Order: grammar mask, logit bias, penalties (a `DrawState` does these three), temperature, then what
stays a candidate (`cuts`: top-k, min-p, top-p), then the draw.

The draw is an argmax over candidates of `logit / temperature + Gumbel(seed, position, token)`,
which is a draw from the softmax over the candidates. A row's result depends on nothing but its
own logits, state and position: not on its neighbours, nor on its place among them. Cuts are
checked after the draw: when they do not keep the winner, they keep none behind it, and those
ahead of it are drawn from, with the noise that they had.

Source: Gumbel, "Statistical theory of extreme values", 1954 (the Gumbel-max trick).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agent.worker.counter_random import (
    Ids,
    gumbel,
    indices_from,
    least_word,
    position_state,
    words,
)
from agent.worker.cuts import Cuts
from agent.worker.draw_state import DrawState
from agent.worker.logprobs import record
from agent.worker.refusal import NON_FINITE_LOGITS
from bus.errors import Internal, Invalid, SuperfluidError
from bus.messages.sampling import SamplingParams

Logits = npt.NDArray[np.float32]

OUT_OF_RANGE = "penalties and logit bias took the logits out of range; use smaller ones"

#: Scaled logits from here on are looked at first; the best has 0.
_LIKELY = np.float32(-8.0)
#: Scores of so many cost less than finding out which can win.
_SMALL_POOL = 2048


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
    drawn: list[Drawn] = []
    for row, (token, state) in enumerate(zip(best.tolist(), states, strict=True)):
        if not finite[row]:
            drawn.append(Drawn(None, b"", state.error or Internal(NON_FINITE_LOGITS)))
        elif state.plain:
            drawn.append(Drawn(token))
        else:
            drawn.append(_sample_row(logits[row], token, state, positions[row]))
    return drawn


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
            error = state.nothing_allowed() if forbidden else Invalid(OUT_OF_RANGE)
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
    with np.errstate(over="ignore"):  # far below the best: -infinity is what is meant
        scaled = logits - logits[best]
        scaled /= np.float32(rule.temperature)
    state = position_state(rule.seed, position)
    cuts = Cuts(scaled, rule)
    token = _winner(scaled, state, cuts.floor)
    while not cuts.keeps(token):
        # Nothing from its rank on is kept, so the winner of those kept is ahead of it.
        scaled = np.where(cuts.ahead(token), scaled, np.float32(-np.inf))
        token = _winner(scaled, state, cuts.floor)
    return token


def _winner(scaled: Logits, state: int, floor: np.float32) -> int:
    """The token with the best score of those whose scaled logit is at least `floor`."""
    pool = np.flatnonzero(scaled >= floor) if floor > -np.inf else None
    if pool is not None and len(pool) <= _SMALL_POOL:
        return _best_of(scaled, state, pool)[0]
    # Without the logarithms of those that can not win: an unlikely token wins only with noise
    # beyond the best likely score less `_LIKELY`, and few words give so much.
    winner, score = _best_of(scaled, state, np.flatnonzero(scaled >= max(floor, _LIKELY)))
    if floor >= _LIKELY:
        return winner
    least = least_word(score - float(_LIKELY))
    if pool is not None and len(pool) <= len(scaled) // 4:
        lucky = pool[words(state, pool) >= np.uint64(least)]
    else:
        lucky = indices_from(state, len(scaled), least)
        lucky = lucky[scaled[lucky] >= floor]
    if not len(lucky):
        return winner
    other, other_score = _best_of(scaled, state, lucky)
    return other if other_score > score else winner


def _best_of(scaled: Logits, state: int, ids: Ids) -> tuple[int, float]:
    """The winner among `ids` and its score."""
    score = gumbel(state, ids)
    score += scaled[ids]
    best = int(score.argmax())
    return int(ids[best]), float(score[best])
