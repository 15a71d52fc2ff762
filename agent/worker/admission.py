"""Sequences that wait for a lane, and how they come to one. Pure.

The first in rank goes first (`priority`), and prefill is done one after the other: a sequence is
let in when it goes before all that prefill, or needs no prefill. So lanes stay dense, and who
comes later finds more to take over (`reuse`). One that had better wait for what another is
computing waits, and that one counts as of its class meanwhile. When all lanes are busy, a sequence
may lose its own for one of a better class (`preemption`): it waits again, with its keys and values
in host memory.
"""

from __future__ import annotations

from agent.worker.lanes import Lanes, lane_of
from agent.worker.preemption import make_safe, victim
from agent.worker.priority import Rank, class_of, rank
from agent.worker.reuse import Reuse, Source
from agent.worker.sequence import Sequence
from agent.worker.work import CopyPrefix, LaneOp, LoadLane
from bus.errors import Internal
from bus.ids import GenerationId
from bus.qos import LOWEST_CLASS, MAY_PREEMPT

#: While some wait and lanes are paused, how often to see whether one can be had.
LOOK_AGAIN_S = 0.25


class Admission:
    """Owns the sequences that have no lane. Driven by the scheduler.

    Invariant: a sequence in here that has tokens computed has them in host memory.

    Args:
        lanes: the scheduler's.
        reuse: the scheduler's.
    """

    def __init__(self, lanes: Lanes, reuse: Reuse) -> None:
        self.waiting: list[Sequence] = []
        #: Counters since the start.
        self.cached_tokens = 0
        self.preemptions = 0
        #: When something may have changed for those that wait though nothing runs.
        self.look_at: float | None = None
        self._lanes = lanes
        self._reuse = reuse
        #: The best class of those that wait for what a sequence in a lane computes.
        self._served: dict[GenerationId, int] = {}
        #: Sequences of this class and below find none that leaves its lane to them, now.
        self._vain = LOWEST_CLASS + 1

    def add(self, sequence: Sequence, now: float) -> None:
        """A sequence waits."""
        self.waiting.append(sequence)
        if not self._lanes.free:
            self.look_at = now

    def remove(self, sequence: Sequence) -> None:
        """A sequence ends that waits."""
        self.waiting.remove(sequence)
        self._lanes.add_ops(self._reuse.release(sequence))

    def startable(self) -> list[Sequence]:
        """Those that could run."""
        return [s for s in self.waiting if not s.paused and not s.held]

    def rank(self, sequence: Sequence, now: float) -> Rank:
        """A prefilling sequence's place, those that wait for it counted in."""
        return rank(sequence, now, self._served.get(sequence.generation, LOWEST_CLASS))

    def admit(self, now: float) -> None:
        """Give lanes to those that wait."""
        self._served.clear()
        self.look_at = None
        startable = self.startable()
        if not startable or not self._lane_is_to_be_had(startable):
            return
        prefilling = self._lanes.running(chunk=True)
        first = min((rank(s, now) for s in prefilling), default=None)
        self._vain = LOWEST_CLASS + 1
        passed_over = 0
        for mine, sequence in sorted((rank(s, now), s) for s in startable):
            behind = sequence.wants_chunk and first is not None and mine > first
            if behind or not self._let_in(sequence, prefilling, passed_over, now):
                passed_over += 1
            elif sequence.wants_chunk:
                prefilling.append(sequence)
                first = mine if first is None else min(first, mine)
        if passed_over and any(s.paused for s in self._lanes):
            self.look_at = now + LOOK_AGAIN_S

    def _lane_is_to_be_had(self, startable: list[Sequence]) -> bool:
        return (
            self._lanes.free > 0
            or any(s.qos <= MAY_PREEMPT for s in startable)
            or any(s.paused for s in self._lanes)
        )

    def _let_in(
        self, sequence: Sequence, prefilling: list[Sequence], passed_over: int, now: float
    ) -> bool:
        """Give a sequence a lane that none of those passed over needs; False when it can not be."""
        leaving = None
        if self._lanes.free <= passed_over:
            if self._lanes.free or sequence.qos >= self._vain:
                return False
            leaving = victim(sequence, self._lanes, now, self._reuse.can_hold)
            if leaving is None:
                self._vain = sequence.qos
                return False
        source = None
        if not sequence.computed:
            source = self._reuse.best_source(sequence, self._lanes)
            leader = self._reuse.leader(sequence, source, prefilling)
            if leader is not None:
                known = self._served.get(leader.generation, LOWEST_CLASS)
                self._served[leader.generation] = min(known, class_of(sequence, now))
                return False
        if leaving is not None:
            if not self._preempt(leaving, now):
                return False
            if source is not None and not self._reuse.has(source):
                source = self._reuse.best_source(sequence, self._lanes)
        self._place(sequence, source, now)
        return True

    def _place(self, sequence: Sequence, source: Source | None, now: float) -> None:
        self.waiting.remove(sequence)
        lane = self._lanes.place(sequence)
        if sequence.saved is not None:
            self._lanes.add_ops([LoadLane(sequence.saved, lane, sequence.computed)])
            self._lanes.add_ops(self._reuse.release(sequence))
            make_safe(sequence, now)
        elif source is not None:
            self._lanes.add_ops(_taking_over(source, lane))
            sequence.take_over(source.tokens, source.exact_tokens)
            self.cached_tokens += source.tokens
        if not sequence.wants_chunk:
            sequence.stop_waiting(now)

    def _preempt(self, leaving: Sequence, now: float) -> bool:
        """Take a sequence's lane away; False when host memory has no room for it."""
        ops = self._reuse.hold(leaving, lane_of(leaving))
        if ops is None:
            return False
        self._lanes.add_ops(ops)
        self._lanes.vacate(leaving)
        self.waiting.append(leaving)
        leaving.wait(now)
        self.preemptions += 1
        return True

    def lose_saved(self, entry: int) -> None:
        """An entry is not to be had: who relied on it begins anew."""
        self._lanes.add_ops(self._reuse.lose(entry))
        for sequence in self.waiting:
            if sequence.saved == entry:
                self._lanes.add_ops(self._reuse.release(sequence))
                sequence.rewind()

    def is_sound(self) -> bool:
        """Whether the invariant holds."""
        return all(
            s.lane is None and (s.saved is not None) == (s.computed > 0) for s in self.waiting
        )


def _taking_over(source: Source, lane: int) -> list[LaneOp]:
    if source.entry is not None:
        return [LoadLane(source.entry, lane, source.tokens)]
    if source.lane is None:
        raise Internal("a source names neither a lane nor an entry")
    # The lane itself may have been taken from the sequence that was found.
    return [] if source.lane == lane else [CopyPrefix(source.lane, lane, source.tokens)]
