"""A group of lanes of a driver, and its units of work that are on their way to the other stages.

Units of a group are done in their order by every stage, this one too: what one copies or saves is
what those before it computed. A chunk that nothing is drawn from changes nothing else, so the next
unit may follow it at once (`depth`): the chunks of a long prompt are at work in several stages.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from agent.worker.hidden_states import unpack_hidden
from agent.worker.host_way import Hidden
from agent.worker.lane_group import LaneGroup
from agent.worker.scheduler import Neighbours
from agent.worker.stage_runner import StageLanes
from agent.worker.stage_unit import encode_unit, unit_of
from agent.worker.work import DecodeStep, Outcome, PrefillChunk, Work


@dataclass(slots=True)
class _Sent:
    """A unit of work, its bytes, by which it is known again, and since when it is under way."""

    work: Work
    unit: bytes
    began: float
    #: It was counted as done when it was sent.
    ahead: bool


class DriverGroup:
    """Owned by a driver, with its chain.

    Args:
        lanes: with scheduler and host memory.
        way: runs this stage over them.
        depth: units that may be under way at once.
        width: of hidden states.
        hidden_type: as they travel.

    Attributes:
        lanes: as given.
    """

    def __init__(
        self, lanes: LaneGroup, way: StageLanes, *, depth: int, width: int, hidden_type: str
    ) -> None:
        self.lanes = lanes
        self._way = way
        self._depth = depth
        self._width = width
        self._hidden_type = hidden_type
        self._number = 0
        self._under_way: deque[_Sent] = deque()
        #: How many of them are back.
        self._back = 0
        #: When the last one was done.
        self._done = 0.0

    # --- what is under way ----------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """Units that were sent and are not done."""
        return len(self._under_way)

    @property
    def since(self) -> float | None:
        """When the first of them was sent."""
        return self._under_way[0].began if self._under_way else None

    @property
    def works(self) -> list[Work]:
        """What is under way, in order."""
        return [sent.work for sent in self._under_way]

    @property
    def idle(self) -> bool:
        """Whether nothing goes on, here or on its way."""
        return not self._under_way and self.lanes.scheduler.idle

    def may_begin(self, in_all: int) -> bool:
        """Whether a unit may be sent now.

        Args:
            in_all: units of all groups that are under way.
        """
        if not self._under_way:
            return True
        if self.lanes.is_busy or in_all >= self._depth:
            return False
        return not self.lanes.scheduler.decodes

    def begin(self, now: float, neighbours: Neighbours) -> Work | None:
        """The next unit, which is under way with it; None when there is none."""
        work = self.lanes.begin(now, neighbours)
        if work is None:
            return None
        ahead = self._depth > 1 and isinstance(work, PrefillChunk) and not work.draw
        if ahead:
            self.lanes.advance()
        unit = encode_unit(unit_of(self._number, work))
        self._number += 1
        self._under_way.append(_Sent(work, unit, time.perf_counter(), ahead))
        return work

    @property
    def last_unit(self) -> bytes:
        """The bytes of the unit that was sent last."""
        return self._under_way[-1].unit

    def comes_back(self, unit: bytes) -> bool:
        """Note that a unit is back; False when it is not the one that is due."""
        due = self._under_way[self._back].unit if self._back < len(self._under_way) else None
        if due != unit:
            return False
        self._back += 1
        return True

    # --- this stage's part ----------------------------------------------------------------

    def finish(self, hidden: bytes, now: float) -> tuple[Work, float]:
        """Do this stage's part of the first unit that is back, and draw.

        Args:
            hidden: what the stage before gave.
            now: seconds.

        Returns:
            The unit, and how long it took.

        Raises:
            DecodeError: the hidden states are not those of its tokens.
            Internal: it could not be run.
        """
        start = time.perf_counter()
        sent = self._under_way.popleft()
        self._back -= 1
        work = sent.work
        self.lanes.transfer(work)
        outcomes: list[Outcome] = []
        if isinstance(work, PrefillChunk):
            fed = self._unpacked(hidden, len(work.ids))
            outcomes = self.lanes.draw(work, self._way.run_chunk(work.lane, fed, work.past))
        elif isinstance(work, DecodeStep):
            fed = self._unpacked(hidden, len(work.ids))
            outcomes = self.lanes.draw(work, self._way.run_step(fed, work.lengths))
        ended = time.perf_counter()
        # What went before it in this group was not its own time.
        elapsed_s = ended - max(sent.began, self._done)
        self._done = ended
        if sent.ahead and isinstance(work, PrefillChunk):
            self.lanes.count_chunk(work, elapsed_s)
        else:
            self.lanes.commit(outcomes, now=now + (ended - start), elapsed_s=elapsed_s)
        return work, ended - start

    def _unpacked(self, hidden: bytes, tokens: int) -> Hidden:
        return unpack_hidden(hidden, tokens, self._width, self._hidden_type)
