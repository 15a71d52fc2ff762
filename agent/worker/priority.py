"""Who goes first among sequences that wait for their next token. Pure functions.

By class, 0 before 3; a sequence that waits rises class by class, so that none starves. Within a
class, those with the fewest tokens left to compute go first, which makes the mean wait least; but
one that has waited for long goes before all shorter ones of its class.
"""

from __future__ import annotations

from agent.worker.sequence import Sequence
from bus.qos import AGE_S, LOWEST_CLASS

#: Shorter prompts pass a longer one of their class for so long.
PASSED_S = 10.0

Rank = tuple[int, int, int]


def aged_class(qos: int, waited_s: float) -> int:
    """The class that a sequence counts as.

    Args:
        qos: class, 0 to 3.
        waited_s: seconds that it has waited in all.
    """
    left_s = AGE_S[qos] - waited_s
    return next(level for level, age_s in enumerate(AGE_S) if age_s >= left_s)


def class_of(sequence: Sequence, now: float) -> int:
    """The class that a sequence counts as, now."""
    return aged_class(sequence.qos, sequence.waited_s(now))


def rank(sequence: Sequence, now: float, served_class: int = LOWEST_CLASS) -> Rank:
    """Sorts sequences: the least goes first. No two are equal.

    Args:
        sequence: one that waits, or that prefills.
        now: seconds.
        served_class: the best class of those that wait for what it computes.
    """
    level = min(class_of(sequence, now), served_class)
    left = 0 if sequence.waited_s(now) >= PASSED_S else len(sequence.tokens) - sequence.computed
    return level, left, sequence.arrival
