"""Which token a transcript may go on with. Pure.

A transcript is text between timestamps: one opens it, then they come in pairs that close one
segment and open the next, and they never go back. Where timestamps together are likelier than any
word, one is chosen.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (arXiv
2212.04356), sections 2.3 and 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.models.blocks import FloatArray
from agent.models.transcriber_figures import TIMESTAMP_S, TranscriberFigures

#: The first segment begins within the first second.
LATEST_BEGIN = round(1.0 / TIMESTAMP_S)


class TimestampRules:
    """The rules of one model."""

    def __init__(self, figures: TranscriberFigures) -> None:
        self._figures = figures
        self._never = [*figures.suppressed, figures.no_timestamps]
        self._not_first = list(figures.suppressed_first)

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> FloatArray:
        """The logits, with all that may not follow at minus infinity.

        Args:
            logits: `[vocab]`.
            tokens: of the transcript so far, without what the prompt had.
        """
        first = self._figures.first_timestamp
        allowed = logits.copy()
        allowed[self._never] = -np.inf
        if not tokens:
            allowed[self._not_first] = -np.inf
            allowed[:first] = -np.inf
            allowed[first + LATEST_BEGIN + 1 :] = -np.inf
            return allowed
        self._keep_pairs(allowed, tokens)
        self._keep_order(allowed, tokens)
        if _log_sum(allowed[first:]) > allowed[:first].max():
            allowed[:first] = -np.inf
        return allowed

    def _keep_pairs(self, allowed: FloatArray, tokens: Sequence[int]) -> None:
        first = self._figures.first_timestamp
        if tokens[-1] < first:
            return
        if len(tokens) < 2 or tokens[-2] >= first:
            allowed[first:] = -np.inf  # A segment is open: text.
        else:
            allowed[: self._figures.end] = -np.inf  # One was closed: the next, or the end.

    def _keep_order(self, allowed: FloatArray, tokens: Sequence[int]) -> None:
        first = self._figures.first_timestamp
        last = max((token for token in tokens if token >= first), default=first)
        closes = tokens[-1] >= first and len(tokens) > 1 and tokens[-2] < first
        # The next segment may begin where the last one ended; no segment ends where it begins.
        allowed[first : last if closes else last + 1] = -np.inf


def log_softmax(logits: FloatArray) -> FloatArray:
    """Logarithms of probabilities; minus infinity stays it."""
    return np.asarray(logits - _log_sum(logits), np.float32)


def _log_sum(logits: FloatArray) -> float:
    most = float(logits.max())
    if most == -np.inf:
        return most
    return most + float(np.log(np.exp((logits - most).astype(np.float64)).sum()))
