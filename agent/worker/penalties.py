"""Repetition, presence and frequency penalties: what a row's own tokens do to its logits.

The repetition penalty looks at the whole context, presence and frequency at the answer alone.
Control tokens are exempt, so a chat template's markers are not pushed away. Only the logits of
tokens that were seen are touched.

Sources: repetition penalty from Keskar et al., "CTRL", arXiv:1909.05858, section 4.1, with
negative logits multiplied; presence and frequency penalties as OpenAI's API describes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bus.messages.sampling import SamplingParams

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_FIRST_CAPACITY = 256


def penalises(params: SamplingParams) -> bool:
    """Whether the parameters ask for any penalty."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


class Penalties:
    """The tokens that one row's penalties touch, each with its count. Driven by its `DrawState`.

    Invariant: `_ids[:_used]` are distinct, below `vocab` and not special; `_counts` says how
    often each was generated, 0 for those that only the prompt has.

    Args:
        params: the three penalties.
        vocab: token ids are below; others are not counted.
        special_ids: exempt from penalties.
        prompt: seen by the repetition penalty alone.
        generated: the answer so far.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab: int,
        special_ids: frozenset[int],
        prompt: Sequence[int],
        generated: Sequence[int],
    ) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._vocab = vocab
        self._special = special_ids
        answer = np.asarray(generated, np.int64)
        seen = answer
        if params.repetition_penalty != 1.0:
            seen = np.concatenate((np.asarray(prompt, np.int64), answer))
        ids = np.unique(seen)
        ids = ids[(ids >= 0) & (ids < vocab) & ~np.isin(ids, list(special_ids))]
        self._used = len(ids)
        capacity = max(_FIRST_CAPACITY, 2 * self._used)
        self._ids = np.zeros(capacity, np.int64)
        self._counts = np.zeros(capacity, np.int64)
        self._ids[: self._used] = ids
        self._place = {token: place for place, token in enumerate(ids.tolist())}
        for token in answer.tolist():
            if token in self._place:
                self._counts[self._place[token]] += 1

    def take(self, token: int) -> None:
        """Count a generated token."""
        place = self._place.get(token)
        if place is None:
            if not 0 <= token < self._vocab or token in self._special:
                return
            place = self._new_place(token)
        self._counts[place] += 1

    def apply(self, logits: Logits) -> None:
        """Change the logits of one row, float32 `[vocab]`, in place."""
        ids = self._ids[: self._used]
        values = logits[ids]
        if self._repetition != 1.0:
            values = np.where(values > 0.0, values / self._repetition, values * self._repetition)
        counts = self._counts[: self._used].astype(np.float32)
        values -= self._frequency * counts
        values -= self._presence * (counts > 0.0)
        logits[ids] = values

    def _new_place(self, token: int) -> int:
        place = self._used
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[place] = token
        self._place[token] = place
        self._used += 1
        return place
