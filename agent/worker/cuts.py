"""Top-k, min-p and top-p: which tokens of a row a draw may give.

Each of the three keeps a head of the tokens in falling order of probability, equal ones by the
lower id; so do all together, in any order. min-p and top-p are measured against the softmax over
the whole vocabulary. The first token is always kept.

No sort is needed: a token is kept when few enough tokens, with little enough probability, are
ahead of it, and a bound below which none is kept is cheap to find.

Sources: top-p from Holtzman et al., "The curious case of neural text degeneration",
arXiv:1904.09751; min-p from Nguyen et al., arXiv:2407.01082.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agent.worker.ranking import floor_of_largest
from bus.messages.sampling import SamplingParams

Logits = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

#: More than float32 logarithms and sums are off by.
_ROUNDING = np.float32(0.01)


class Cuts:
    """The cuts of one row.

    Args:
        scaled: float32 `[vocab]`, logits over temperature with the largest at 0.
        rule: `top_k`, `min_p` and `top_p` count.

    Attributes:
        floor: no token whose scaled logit is below is kept; -infinity for no bound.
    """

    __slots__ = ("_chances", "_mass", "_scaled", "_top_k", "floor")

    def __init__(self, scaled: Logits, rule: SamplingParams) -> None:
        self._scaled = scaled
        self._top_k = rule.top_k
        self._chances: Logits | None = None
        self._mass = np.inf
        self.floor = np.float32(-np.inf)
        if rule.min_p > 0.0:
            self.floor = np.float32(np.log(rule.min_p))
        if rule.top_k:
            self.floor = max(self.floor, floor_of_largest(scaled, rule.top_k))
        if rule.top_p < 1.0:
            self._chances = np.exp(scaled)
            total = float(self._chances.sum(dtype=np.float64))
            self._mass = rule.top_p * total
            self.floor = max(self.floor, _nucleus_floor(total, rule.top_p, len(scaled)))

    def keeps(self, token: int) -> bool:
        """Whether a token that is not below `floor` stays a candidate."""
        if not self._top_k and self._chances is None:
            return True
        ahead = self.ahead(token)
        count = int(np.count_nonzero(ahead))
        if count == 0:
            return True
        if self._top_k and count >= self._top_k:
            return False
        if self._chances is None:
            return True
        return float(self._chances[ahead].sum(dtype=np.float64)) < self._mass

    def ahead(self, token: int) -> Flags:
        """Which tokens rank before `token`."""
        value = self._scaled[token]
        flags: Flags = self._scaled > value
        flags[:token] |= self._scaled[:token] == value
        return flags


def _nucleus_floor(total: float, top_p: float, vocab: int) -> np.float32:
    """Below this, `vocab` tokens together have less than what top-p leaves out."""
    left_out = max((1.0 - top_p) * total / vocab, float(np.finfo(np.float32).tiny))
    return np.float32(np.log(left_out)) - _ROUNDING
