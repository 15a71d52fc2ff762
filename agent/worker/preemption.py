"""Whose lane is taken when a request of a better class waits and all lanes are busy. Pure.

The lowest class that is below the one that waits, aged by the time that each has waited itself;
of these the one with the least to copy. A sequence that nobody reads (paused) goes before others.
One that came back has its lane for a while, so that two do not push each other out in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.worker.priority import class_of
from agent.worker.sequence import Sequence
from bus.qos import MAY_PREEMPT

#: A sequence that came back is safe until one of the two is over.
SAFE_S = 2.0
SAFE_TOKENS = 64
#: A sequence that is paused for so long leaves its lane to any that waits.
PAUSED_S = 2.0


def victim(
    candidate: Sequence,
    placed: Iterable[Sequence],
    now: float,
    fits: Callable[[Sequence], bool],
) -> Sequence | None:
    """The sequence that leaves its lane to the candidate, or None.

    Args:
        candidate: one that waits, and could run.
        placed: all sequences in lanes.
        now: seconds.
        fits: whether host memory has room for a sequence.
    """
    found = [s for s in placed if _may_be_taken(candidate, s, now) and fits(s)]
    return max(found, key=lambda s: (s.paused, class_of(s, now), -s.computed), default=None)


def _may_be_taken(candidate: Sequence, sequence: Sequence, now: float) -> bool:
    if sequence.paused and now - sequence.paused_since >= PAUSED_S:
        return True
    if candidate.qos > MAY_PREEMPT or class_of(sequence, now) <= candidate.qos:
        return False
    return now >= sequence.safe_until_s or sequence.computed >= sequence.safe_until_tokens


def make_safe(sequence: Sequence, now: float) -> None:
    """A preempted sequence has a lane again."""
    sequence.safe_until_s = now + SAFE_S
    sequence.safe_until_tokens = sequence.computed + SAFE_TOKENS
