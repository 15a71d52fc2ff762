"""What tests draw from: logits of known probabilities, draw states and a grammar.

Every argument of a draw state that a test does not speak of has a plain value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.worker.draw_state import Bits, DrawState, Grammar
from agent.worker.sampler import Logits
from bus.errors import ConstraintReplayFailed
from bus.messages.sampling import SamplingParams


def logits_of(*probabilities: float) -> Logits:
    """Logits whose softmax is `probabilities`, the likeliest at 0."""
    values = np.log(np.array(probabilities, np.float64))
    return np.asarray(values - values.max(), np.float32)


def make_state(
    params: SamplingParams,
    vocab: int,
    *,
    eos_ids: Sequence[int] = (),
    special_ids: Sequence[int] = (),
    prompt: Sequence[int] = (),
    generated: Sequence[int] = (),
    vocabulary: Sequence[bytes] = (),
    grammar: Grammar | None = None,
) -> DrawState:
    """A `DrawState`, for text of the vocabulary given."""
    return DrawState(
        params,
        vocab=vocab,
        eos_ids=eos_ids,
        special_ids=frozenset(special_ids),
        prompt=prompt,
        generated=generated,
        vocabulary=lambda: vocabulary,
        grammar=grammar,
    )


class ListGrammar:
    """A grammar that says for each place of the answer which tokens it allows, and then ends.

    Args:
        places: token ids allowed at each place; None for all.
        vocab: tokens in a mask.
        at: the place that the answer has reached.

    Attributes:
        failure: what a test sets, to have a grammar that can not go on.
    """

    def __init__(self, places: Sequence[Sequence[int] | None], vocab: int, at: int = 0) -> None:
        self.failure = ""
        self._places = places
        self._vocab = vocab
        self._at = at

    def mask(self) -> Bits | None:
        allowed = self._places[self._at] if not self.stopped else ()
        if allowed is None:
            return None
        words = np.zeros((self._vocab + 31) // 32, np.uint32)
        for token in allowed:
            words[token // 32] |= np.uint32(1 << (token % 32))
        return words

    def take(self, token: int) -> None:
        allowed = self._places[self._at] if not self.stopped else ()
        if allowed is not None and token not in allowed:
            raise ConstraintReplayFailed(f"token {token} does not fit at place {self._at}")
        self._at += 1

    @property
    def stopped(self) -> bool:
        return self._at == len(self._places)
