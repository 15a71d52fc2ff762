"""A stage that does as it is told: layers that another machine's worker draws through.

It mirrors the lanes and the saved ones of the worker that drives a chain: each unit of work says
what to copy, save and drop, and then which tokens of which lanes run. It decides nothing and keeps
nothing but what is bound to a chain, and goes with it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from agent.worker.hidden_states import pack_hidden, unpack_hidden
from agent.worker.host_way import Fed
from agent.worker.stage_memory import ChainShape, StageBudget
from agent.worker.stage_runner import StageLanes, StageRunner
from agent.worker.stage_unit import ChunkRun, StepRun, Unit, UnitLimits, decode_unit
from agent.worker.transfers import Transfers
from bus.errors import ConfigInvalid, DecodeError, Internal, SuperfluidError
from bus.messages.worker import WorkerStats
from bus.messages.worker_stages import StageFailed, StageOpen, StageOpened, StageUnit


@dataclass(slots=True)
class _Group:
    """A group's lanes, and the number of its next unit."""

    lanes: StageLanes
    transfers: Transfers
    next_number: int = 0


@dataclass(slots=True)
class _Chain:
    """What an open chain has of this stage."""

    shape: ChainShape
    limits: UnitLimits
    hidden_type: str
    groups: list[_Group]
    #: Units that may wait.
    most_waiting: int


@dataclass(slots=True)
class _Counters:
    """What was done since the start."""

    chunks: int = 0
    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_busy_s: float = 0.0
    decode_busy_s: float = 0.0
    phase: str = "idle"


class Executor:
    """Owns what its chains have. Driven by a worker's loop.

    Args:
        runner: the loaded stage, which is not the last.
        kv_bytes: for the lanes of all chains.
        host_kv_bytes: for what they save in host memory.
    """

    def __init__(self, runner: StageRunner, *, kv_bytes: int, host_kv_bytes: int) -> None:
        self.runner = runner
        figures = runner.folder.signature
        self._budget = StageBudget(
            kv_bytes=kv_bytes,
            host_kv_bytes=host_kv_bytes,
            token_bytes=runner.token_bytes,
            max_window=figures.max_positions,
        )
        self._chains: dict[int, _Chain] = {}
        self._waiting: deque[StageUnit] = deque()
        self._counters = _Counters()

    # --- chains ---------------------------------------------------------------------------

    def open(self, order: StageOpen) -> StageOpened:
        """Make room for a chain, or say why there is none; one that is open is made anew."""
        self.close(order.chain)
        try:
            shape = self._budget.shape(order, kv_used=self._kv_used(), host_used=self._host_used())
            self._chains[order.chain] = self._make_chain(order, shape)
        except ConfigInvalid as error:
            return StageOpened(chain=order.chain, code=error.code, message=error.message)
        return StageOpened(
            chain=order.chain,
            window=shape.window,
            lanes=shape.groups * shape.lanes,
            host_tokens=shape.groups * shape.host_tokens,
            numerics=self.runner.numerics,
        )

    def close(self, chain: int) -> None:
        """Free what a chain has, and forget its units; an unknown one is passed over."""
        self._chains.pop(chain, None)
        self._waiting = deque(unit for unit in self._waiting if unit.chain != chain)

    def _make_chain(self, order: StageOpen, shape: ChainShape) -> _Chain:
        host_bytes = shape.host_tokens * self.runner.token_bytes
        try:
            made = [self.runner.make_lanes(shape.lanes, shape.window) for _ in range(shape.groups)]
        except OSError as error:
            size = shape.kv_tokens * self.runner.token_bytes
            raise ConfigInvalid(
                f"the system has no {size} bytes for the lanes of a chain ({error.strerror}); give "
                "the worker a smaller KV budget",
                param="kv_bytes",
            ) from error
        return _Chain(
            shape,
            UnitLimits(shape.lanes, shape.window, self.runner.folder.signature.vocab),
            order.hidden_type,
            [_Group(lanes, Transfers(lanes.slab, host_bytes)) for lanes in made],
            shape.groups * order.depth,
        )

    def _kv_used(self) -> int:
        tokens = sum(chain.shape.kv_tokens for chain in self._chains.values())
        return tokens * self.runner.token_bytes

    def _host_used(self) -> int:
        shapes = [chain.shape for chain in self._chains.values()]
        return sum(s.groups * s.host_tokens for s in shapes) * self.runner.token_bytes

    # --- units of work --------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no unit of work waits."""
        return not self._waiting

    def take(self, unit: StageUnit) -> StageFailed | None:
        """Put a unit of work in line; one of a chain that is not open is dropped."""
        chain = self._chains.get(unit.chain)
        if chain is None:
            return None
        if sum(one.chain == unit.chain for one in self._waiting) >= chain.most_waiting:
            return self._failed(unit.chain, Internal("units of work come faster than answers go"))
        self._waiting.append(unit)
        return None

    def turn(self) -> StageUnit | StageFailed | None:
        """Do the first unit in line; what goes to the next stage. None when there is none."""
        if not self._waiting:
            return None
        message = self._waiting.popleft()
        chain = self._chains[message.chain]
        try:
            return self._do(chain, message)
        except (DecodeError, Internal) as error:
            return self._failed(message.chain, error)

    def _do(self, chain: _Chain, message: StageUnit) -> StageUnit:
        if message.group >= len(chain.groups):
            raise DecodeError(f"group {message.group} is none of {len(chain.groups)}")
        group = chain.groups[message.group]
        unit = decode_unit(message.unit, chain.limits)
        if unit.number != group.next_number:
            raise DecodeError(
                f"unit {unit.number} of group {message.group} came where {group.next_number} is due"
            )
        group.next_number += 1
        lost = group.transfers.run(unit.ops) if unit.ops else []
        if lost:
            raise Internal(f"keys and values could not be copied: {lost[0]}")
        hidden = self._run(chain, group, unit, message.hidden)
        return StageUnit(chain=message.chain, group=message.group, unit=message.unit, hidden=hidden)

    def _run(self, chain: _Chain, group: _Group, unit: Unit, hidden: bytes) -> bytes:
        run = unit.run
        if run is None:
            return b""
        width = self.runner.folder.signature.hidden
        fed: Fed = (
            run.ids
            if self.runner.takes_ids
            else unpack_hidden(hidden, unit.tokens, width, chain.hidden_type)
        )
        start = time.perf_counter()
        if isinstance(run, ChunkRun):
            given = group.lanes.run_chunk(run.lane, fed, run.past)
        else:
            given = group.lanes.run_step(fed, run.lengths)
        self._count(run, time.perf_counter() - start)
        return pack_hidden(given, chain.hidden_type)

    def _failed(self, chain: int, error: SuperfluidError) -> StageFailed:
        self.close(chain)
        return StageFailed(chain=chain, code=error.code, message=error.message[:500])

    # --- figures --------------------------------------------------------------------------

    def _count(self, run: ChunkRun | StepRun, elapsed_s: float) -> None:
        counters, tokens = self._counters, len(run.ids)
        if isinstance(run, ChunkRun):
            counters.phase = "prefill"
            counters.chunks += 1
            counters.prefill_tokens += tokens
            counters.prefill_busy_s += elapsed_s
        else:
            counters.phase = "decode"
            counters.steps += 1
            counters.decode_tokens += tokens
            counters.decode_busy_s += elapsed_s

    def stats(self) -> WorkerStats:
        """Counters since the start, and what holds now."""
        counters = self._counters
        groups = [group for chain in self._chains.values() for group in chain.groups]
        return WorkerStats(
            steps=counters.chunks + counters.steps,
            decode_tokens=counters.decode_tokens,
            prefill_tokens=counters.prefill_tokens,
            decode_busy_s=counters.decode_busy_s,
            prefill_busy_s=counters.prefill_busy_s,
            queued=len(self._waiting),
            phase="idle" if self.idle else counters.phase,
            kv_host_bytes=sum(group.transfers.host.nbytes for group in groups),
        )
