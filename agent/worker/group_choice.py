"""Which group of lanes a generation goes to. Pure.

Groups take turns on the stages, so all want equally much to do: the one with the fewest
generations gets the next. Among equals, and for a long prefix also where one more is, it is the
one that has the beginning of the prompt in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.worker.prefix_cache import MIN_SHARED_TOKENS
from agent.worker.scheduler import Scheduler
from bus.ids import unpack_ids
from bus.messages.worker import Submit


def choose_group(schedulers: Sequence[Scheduler], submit: Submit) -> int:
    """The index of the group that takes a generation."""
    counts = [scheduler.lanes_used + scheduler.queued for scheduler in schedulers]
    fewest = min(counts)
    tokens = unpack_ids(submit.context)

    def merit(index: int) -> tuple[int, int]:
        more = counts[index] - fewest
        if more > 1:
            return 0, -counts[index]
        held = schedulers[index].reuse.held_tokens(tokens, submit.salt)
        return (0 if more and held < MIN_SHARED_TOKENS else held), -counts[index]

    return max(range(len(schedulers)), key=merit)
