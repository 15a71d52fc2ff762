"""Which sequence has which lane, and what is to be copied before the next run. Pure.

Lanes are kept dense at the low end: a step runs rows 0 to the highest ready one, and a free row
below that is first filled by moving the highest ready lane into it. A row in between that is
paused or prefilling runs along and is not advanced: it is fed its own next token, whose keys and
values are written again, the right way, when the sequence itself goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent.worker.sequence import Sequence
from agent.worker.work import LaneOp, MoveLane
from bus.errors import Internal


class Lanes:
    """Owns the lanes. Driven by the scheduler.

    Invariant: a lane belongs to at most one sequence, and that sequence names it. What an
    operation in `_ops` reads is there when those before it are done.

    Args:
        count: rows of the slab.
    """

    def __init__(self, count: int) -> None:
        self.rows: list[Sequence | None] = [None] * count
        self._ops: list[LaneOp] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Sequence]:
        """Sequences in lanes, in lane order."""
        return (sequence for sequence in self.rows if sequence is not None)

    @property
    def free(self) -> int:
        """Lanes that no sequence has."""
        return self.rows.count(None)

    @property
    def has_ops(self) -> bool:
        """Whether anything is to be copied or dropped."""
        return bool(self._ops)

    def running(self, *, chunk: bool) -> list[Sequence]:
        """Sequences in lanes that may run, by chunk or by step, in lane order."""
        return [s for s in self.rows if s and not s.paused and s.wants_chunk == chunk]

    def place(self, sequence: Sequence) -> int:
        """Give the lowest free lane to a sequence; there must be one."""
        lane = sequence.lane = self.rows.index(None)
        self.rows[lane] = sequence
        return lane

    def vacate(self, sequence: Sequence) -> None:
        """Take a sequence's lane away."""
        self.rows[lane_of(sequence)] = None
        sequence.lane = None

    def fill_holes(self, ready: list[Sequence]) -> None:
        """Move ready sequences from the top into free lanes below them."""
        while None in self.rows:
            hole = self.rows.index(None)
            top = max(ready, key=lane_of)
            source = lane_of(top)
            if hole > source:
                return
            self.rows[source], self.rows[hole] = None, top
            top.lane = hole
            self._ops.append(MoveLane(source, hole, top.computed))

    def add_ops(self, ops: Iterable[LaneOp]) -> None:
        """Have something done before the next run, after what was added before."""
        self._ops.extend(ops)

    def take_ops(self) -> list[LaneOp]:
        """What is to be done before the next run."""
        taken, self._ops = self._ops, []
        return taken

    def is_sound(self) -> bool:
        """Whether the invariant holds."""
        return all(s is None or s.lane == lane for lane, s in enumerate(self.rows))


def lane_of(sequence: Sequence) -> int:
    """The lane of a sequence that has one."""
    if sequence.lane is None:
        raise Internal(f"generation {sequence.generation} has no lane")
    return sequence.lane
