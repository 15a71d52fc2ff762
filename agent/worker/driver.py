"""The engine of a model's last stage: it generates, and the other stages execute.

It does what `Engine` does, over lanes in as many groups as there are stages. A group's unit of work
goes to the first stage as token ids (`begin`), from stage to stage as hidden states, and comes back
here (`arrived`), where `turn` runs the last layers and draws. Each group has one unit under way at
most, so that together they keep all stages at work.

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
from agent.worker.group_choice import choose_group
from agent.worker.hidden_states import unpack_hidden
from agent.worker.host_way import Hidden
from agent.worker.lane_group import LaneGroup
from agent.worker.numerics import hash_of
from agent.worker.stage_memory import StageBudget
from agent.worker.stage_runner import StageLanes, StageRunner
from agent.worker.stage_unit import encode_unit, unit_of
from agent.worker.stat_sums import counters_of, sum_stats
from agent.worker.work import DecodeStep, Emission, Outcome, PrefillChunk, Work
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


@dataclass(slots=True, eq=False)
class _Group:
    """Lanes of the chain, with the unit of work that is on its way through the other stages."""

    lanes: LaneGroup
    way: StageLanes
    #: Units that were sent.
    sent: int = 0
    #: The one that is under way, its bytes, by which it is known again, and since when.
    work: Work | None = None
    unit: bytes = b""
    began: float = 0.0


@dataclass(slots=True)
class _Chain:
    """The open chain."""

    number: int
    hidden_type: str
    groups: list[_Group]


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
        self._where: dict[GenerationId, _Group] = {}
        #: What came back from the other stages.
        self._arrived: deque[tuple[_Group, bytes]] = deque()
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
        ways = [self.runner.make_lanes(shape.lanes, shape.window) for _ in range(shape.groups)]
        groups = [
            LaneGroup(
                self.runner.folder,
                way.slab,
                window=shape.window,
                longest_chunk=self.runner.longest_chunk,
                numerics=numerics,
                host_kv_bytes=shape.host_tokens * self.runner.token_bytes,
                draws=self._draws,
                mirrored=True,
            )
            for way in ways
        ]
        made = [_Group(lanes, way) for lanes, way in zip(groups, ways, strict=True)]
        self._chain = _Chain(order.chain, order.hidden_type, made)
        return StageOpened(
            chain=order.chain,
            window=shape.window,
            lanes=shape.groups * shape.lanes,
            host_tokens=shape.groups * shape.host_tokens,
            numerics=numerics,
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
        if group is None or group.work is None or group.unit != unit.unit or self._has(group):
            self._fail(DecodeError("a unit of work came back that is not under way"))
        else:
            self._arrived.append((group, unit.hidden))

    def _has(self, group: _Group) -> bool:
        return any(other is group for other, _ in self._arrived)

    # --- turns ----------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing goes on, here or on its way, until someone submits or time passes."""
        return all(group.lanes.scheduler.idle and not group.lanes.is_busy for group in self._groups)

    @property
    def has_work(self) -> bool:
        """Whether a turn would do something now."""
        return bool(self._arrived) or any(
            not (group.lanes.is_busy or group.lanes.scheduler.idle) for group in self._groups
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

    def _begin(self, groups: Iterable[_Group], now: float) -> bool:
        """Send off a unit of each group that has one and none under way."""
        sent = len(self._messages)
        for index, group in enumerate(self._groups):
            if group not in groups or group.lanes.is_busy:
                continue
            work = group.lanes.begin(now)
            if work is not None and self._chain is not None:
                group.unit, group.work = encode_unit(unit_of(group.sent, work)), work
                group.sent += 1
                group.began = time.perf_counter()
                self._count(work, 1, group.began)
                unit = StageUnit(chain=self._chain.number, group=index, unit=group.unit)
                self._messages.append(unit)
        return len(self._messages) > sent

    def _finish(self, group: _Group, hidden: bytes, now: float) -> float:
        """The last stage's part of a unit; seconds that it took."""
        start = time.perf_counter()
        work, group.work = group.work, None
        outcomes: list[Outcome] = []
        if isinstance(work, PrefillChunk):
            fed = self._unpacked(hidden, len(work.ids))
            logits = group.way.run_chunk(work.lane, fed, work.past)
            outcomes = group.lanes.draw(work, logits)
        elif isinstance(work, DecodeStep):
            fed = self._unpacked(hidden, len(work.ids))
            logits = group.way.run_step(fed, work.lengths)
            outcomes = group.lanes.draw(work, logits)
        ended = time.perf_counter()
        if work is not None:
            self._count(work, -1, ended)
        group.lanes.commit(outcomes, now=now + (ended - start), elapsed_s=ended - group.began)
        return ended - start

    def _unpacked(self, hidden: bytes, tokens: int) -> Hidden:
        width = self.runner.folder.signature.hidden
        return unpack_hidden(hidden, tokens, width, self._chain.hidden_type if self._chain else "")

    def _count(self, work: Work, change: int, at: float) -> None:
        if isinstance(work, PrefillChunk):
            self._clock.chunk(change, at)
        elif isinstance(work, DecodeStep):
            self._clock.step(change, at)

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
    def _groups(self) -> list[_Group]:
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
        away = [group for group in self._groups if group.work is not None]
        since = min((group.began for group in away), default=math.inf)
        if not self._arrived and time.perf_counter() - since >= AWAY_S:
            return WAITING
        chunks = any(isinstance(group.work, PrefillChunk) for group in away)
        return "prefill" if chunks else "decode"

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
            group.lanes.check_integrity()
