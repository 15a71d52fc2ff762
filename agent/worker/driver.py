"""The engine of a model's last stage: it generates, and the other stages execute.

It does what `Engine` does, over lanes in as many groups as there are stages. A group's unit of work
goes to the first stage as token ids (`begin`), from stage to stage as hidden states, and comes back
here (`arrived`), where `turn` runs the last layers and draws. Each group has one unit under way, so
that together they keep all stages at work; a lone prompt may have several (`driver_group`).

Generations run while a chain is open. Lanes, prefixes and whatever else the stages hold together
are made with a chain and go with it; what the generations had is computed again in the next one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest

from agent.worker.busy_clock import BusyClock
from agent.worker.draws import Draws, GrammarSource, Vocabulary
from agent.worker.driver_group import DriverGroup
from agent.worker.group_choice import choose_group
from agent.worker.lane_group import LaneGroup
from agent.worker.numerics import hash_of
from agent.worker.scheduler import Neighbours
from agent.worker.stage_memory import ChainShape, StageBudget
from agent.worker.stage_runner import StageRunner
from agent.worker.stat_sums import counters_of, sum_stats
from agent.worker.work import DecodeStep, Emission, PrefillChunk, Work
from bus.errors import ConfigInvalid, DecodeError, Internal, NoNode, SuperfluidError
from bus.ids import GenerationId, NumericsId
from bus.log import EventLog
from bus.messages.worker import Submit, WorkerStats
from bus.messages.worker_stages import StageFailed, StageOpen, StageOpened, StageUnit
from bus.text.tokenizer import TextModel

log = EventLog(__name__)

#: A unit that is away for so long waits for another stage, and this one is not at work.
AWAY_S = 5.0
#: The phase of a driver that waits for another stage.
WAITING = "stages"


@dataclass(slots=True)
class _Chain:
    """The open chain."""

    number: int
    groups: list[DriverGroup]


class DriverEngine:
    """Generates for many sequences over a chain of stages. One thread drives it.

    Args:
        runner: the last stage, loaded.
        kv_bytes: for the lanes.
        host_kv_bytes: for prefixes and preempted lanes; 0 is neither.
        text: the model's tokenizer; None opens the folder's.
        grammars: None where constraints can not be honoured.
    """

    def __init__(
        self,
        runner: StageRunner,
        *,
        kv_bytes: int,
        host_kv_bytes: int,
        text: Vocabulary | None = None,
        grammars: GrammarSource | None = None,
    ) -> None:
        self.runner = runner
        folder = runner.folder
        self._draws = Draws(
            vocab=folder.signature.vocab,
            eos_ids=folder.eos_ids,
            text=TextModel.open(folder.path) if text is None else text,
            grammars=grammars,
        )
        self._budget = StageBudget(
            kv_bytes=kv_bytes,
            host_kv_bytes=host_kv_bytes,
            token_bytes=runner.token_bytes,
            max_window=folder.signature.max_positions,
        )
        self._chain: _Chain | None = None
        #: The group of each generation that goes on.
        self._where: dict[GenerationId, DriverGroup] = {}
        #: What came back from the other stages.
        self._arrived: deque[tuple[DriverGroup, bytes]] = deque()
        self._messages: list[StageUnit | StageFailed] = []
        self._clock = BusyClock()
        #: Counters of chains that are closed.
        self._before = WorkerStats()

    # --- chains ---------------------------------------------------------------------------

    @property
    def chain(self) -> int | None:
        """The number of the chain that is open."""
        return self._chain.number if self._chain else None

    def open(self, order: StageOpen) -> StageOpened:
        """Make the lanes of a chain whose other stages are open; another one is closed."""
        self.close()
        try:
            shape = self._budget.shape(order)
        except ConfigInvalid as error:
            return StageOpened(chain=order.chain, code=error.code, message=error.message)
        numerics = NumericsId(hash_of(["stages", *order.numerics, self.runner.numerics]))
        made = [self._make_group(order, shape, numerics) for _ in range(shape.groups)]
        self._chain = _Chain(order.chain, made)
        return StageOpened(
            chain=order.chain,
            window=shape.window,
            lanes=shape.groups * shape.lanes,
            host_tokens=shape.groups * shape.host_tokens,
            numerics=numerics,
        )

    def _make_group(self, order: StageOpen, shape: ChainShape, numerics: NumericsId) -> DriverGroup:
        way, folder = self.runner.make_lanes(shape.lanes, shape.window), self.runner.folder
        lanes = LaneGroup(
            folder,
            way.slab,
            window=shape.window,
            longest_chunk=self.runner.longest_chunk,
            numerics=numerics,
            host_kv_bytes=shape.host_tokens * self.runner.token_bytes,
            draws=self._draws,
            mirrored=True,
        )
        return DriverGroup(
            lanes,
            way,
            depth=order.depth,
            width=folder.signature.hidden,
            hidden_type=order.hidden_type,
        )

    def close(self, chain: int | None = None) -> None:
        """Forget a chain with all of its generations, without a word; another one stays open.

        Args:
            chain: its number; None is whichever is open.
        """
        if self._chain is None or chain not in (None, self._chain.number):
            return
        self._before = counters_of(self._groups_stats())
        for generation in self._where:
            self._draws.drop(generation)
        self._where.clear()
        self._arrived.clear()
        self._messages.clear()
        self._clock.stop(time.perf_counter())
        self._chain = None

    # --- what the agent says --------------------------------------------------------------

    @property
    def model(self) -> str:
        """The model's name."""
        return self.runner.folder.name

    def knows(self, generation: GenerationId) -> bool:
        """Whether a generation goes on, or its end was not given out yet."""
        return generation in self._where

    def submit(self, submit: Submit, now: float) -> None:
        """Take a generation in. One that is known already changes nothing.

        Raises:
            SuperfluidError: as `Engine.submit`; NoNode without a chain.
        """
        if submit.generation in self._where:
            return
        if self._chain is None:
            raise NoNode(f"the other stages of model {self.model} are not there; start their nodes")
        groups = self._chain.groups
        chosen = groups[choose_group([group.lanes.scheduler for group in groups], submit)]
        chosen.lanes.submit(submit, now)
        self._where[submit.generation] = chosen

    def cancel(self, generation: GenerationId) -> None:
        """End a generation when its unit of work is done; unknown ones are passed over."""
        if generation in self._where:
            self._where[generation].lanes.cancel(generation)

    def pause(self, generation: GenerationId, now: float = 0.0) -> None:
        """Hold a generation; see `Engine.pause`."""
        if generation in self._where:
            self._where[generation].lanes.pause(generation, now)

    def resume(self, generation: GenerationId) -> None:
        """Let a held generation go on."""
        if generation in self._where:
            self._where[generation].lanes.resume(generation)

    def arrived(self, unit: StageUnit) -> None:
        """A unit of work comes from the stage before; what is of no open chain is dropped."""
        chain = self._chain
        if chain is None or chain.number != unit.chain:
            return
        group = chain.groups[unit.group] if unit.group < len(chain.groups) else None
        if group is None or not group.comes_back(unit.unit):
            self._fail(DecodeError("a unit of work came back that is not under way"))
        else:
            self._arrived.append((group, unit.hidden))

    # --- turns ----------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing goes on, here or on its way, until someone submits or time passes."""
        return all(group.idle for group in self._groups)

    @property
    def has_work(self) -> bool:
        """Whether a turn would do something now."""
        in_all = self._under_way
        return bool(self._arrived) or any(
            group.may_begin(in_all) and not group.lanes.scheduler.idle for group in self._groups
        )

    @property
    def building(self) -> bool:
        """Whether a turn may find a grammar built, and a generation start."""
        return self._draws.building

    @property
    def step_s(self) -> float:
        """How long a decode step takes of late; 0 is not yet known."""
        return max((g.lanes.scheduler.pacer.step_s for g in self._groups), default=0.0)

    def next_deadline(self) -> float | None:
        """When a turn is needed although there is no work."""
        free = [g.lanes.scheduler for g in self._groups if not g.lanes.is_busy]
        times = [scheduler.next_deadline() for scheduler in free]
        return min((at for at in times if at is not None), default=None)

    def turn(self, now: float) -> list[Emission]:
        """Begin what can be begun; else run the last layers of a unit that came, and draw.

        Returns:
            Tokens and ends since the last turn, in order of each generation.
        """
        for generation, error in self._draws.take_ready():
            if generation in self._where:
                self._where[generation].lanes.take_grammar(generation, error)
        try:
            if not self._begin(self._groups, now) and self._arrived:
                group, hidden = self._arrived.popleft()
                spent_s = self._finish(group, hidden, now)
                self._begin([group], now + spent_s)
        except (Internal, DecodeError) as error:
            self._fail(error)
        return self._take_emissions()

    def take_messages(self) -> list[StageUnit | StageFailed]:
        """What is to be sent since the last call: units of work to the first stage, or the end."""
        taken, self._messages = self._messages, []
        return taken

    def _begin(self, groups: Iterable[DriverGroup], now: float) -> bool:
        """Send off units of those groups that have some and may; whether there was one."""
        sent = len(self._messages)
        for group in groups:
            while self._chain is not None and group.may_begin(self._under_way):
                work = group.begin(now, self._neighbours(group))
                if work is None:
                    break
                self._count(work, 1)
                index = self._chain.groups.index(group)
                unit = StageUnit(chain=self._chain.number, group=index, unit=group.last_unit)
                self._messages.append(unit)
        return len(self._messages) > sent

    def _neighbours(self, group: DriverGroup) -> Neighbours:
        others = [g.lanes.scheduler.neighbourhood for g in self._groups if g is not group]
        classes = [other.decoding for other in others if other.decoding is not None]
        return Neighbours(any(other.any for other in others), min(classes, default=None))

    def _finish(self, group: DriverGroup, hidden: bytes, now: float) -> float:
        """The last stage's part of a unit; seconds that it took."""
        work, spent_s = group.finish(hidden, now)
        self._count(work, -1)
        return spent_s

    def _count(self, work: Work, change: int) -> None:
        if isinstance(work, PrefillChunk):
            self._clock.chunk(change, time.perf_counter())
        elif isinstance(work, DecodeStep):
            self._clock.step(change, time.perf_counter())

    def _fail(self, error: SuperfluidError) -> None:
        """Give up the chain: what the stages hold is no longer the same."""
        chain = self.chain
        if chain is None:
            return
        log.error("chain_failed", chain=chain, error=error)
        self.close()
        self._messages = [StageFailed(chain=chain, code=error.code, message=error.message[:500])]

    def _take_emissions(self) -> list[Emission]:
        emissions = [e for group in self._groups for e in group.lanes.take_emissions()]
        for emission in emissions:
            if emission.finish is not None:
                del self._where[emission.generation]
        return emissions

    # --- figures --------------------------------------------------------------------------

    @property
    def _under_way(self) -> int:
        return sum(group.under_way for group in self._groups)

    @property
    def _groups(self) -> list[DriverGroup]:
        return self._chain.groups if self._chain else []

    def stats(self) -> WorkerStats:
        """Counters since the start, and what holds now."""
        return replace(
            self._groups_stats(),
            decode_busy_s=self._clock.decode_s,
            prefill_busy_s=self._clock.prefill_s,
            phase=self._phase(),
        )

    def _groups_stats(self) -> WorkerStats:
        return sum_stats([self._before, *(group.lanes.stats() for group in self._groups)])

    def _phase(self) -> str:
        if all(group.lanes.scheduler.at_rest for group in self._groups):
            return "idle"
        times = [group.since for group in self._groups if group.since is not None]
        if not self._arrived and time.perf_counter() - min(times, default=math.inf) >= AWAY_S:
            return WAITING
        works = [work for group in self._groups for work in group.works]
        return "prefill" if any(isinstance(w, PrefillChunk) for w in works) else "decode"

    def prefix_digests(self) -> tuple[bytes, ...]:
        """Hashes of the prefixes in host memory, each group's newest first."""
        of_groups = [group.lanes.scheduler.prefix_digests() for group in self._groups]
        return tuple(dict.fromkeys(one for row in zip_longest(*of_groups) for one in row if one))

    def check_integrity(self) -> None:
        """For tests, between two turns.

        Raises:
            Internal: a group contradicts itself.
        """
        for group in self._groups:
            if group.under_way:
                group.lanes.scheduler.check_integrity()
            else:
                group.lanes.check_integrity()
