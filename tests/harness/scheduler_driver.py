"""Drives a scheduler as an engine does. The slab and host memory are real, the model is not.

What stands for the keys and values of a token are three numbers: the token, whether it went by
step, and a hash of both over it and all before it. So a lane that was put together wrongly shows,
down to how its tokens were computed. With `grid`, the hash also has on which side of the middle of
a token's block its chunk ended, as with models of large heads.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agent.worker.chunk_grid import BLOCK, last_end
from agent.worker.kv_cache import HostSlab, LaneShape
from agent.worker.scheduler import Scheduler
from agent.worker.spans import Spans
from agent.worker.transfers import Transfers
from agent.worker.work import DecodeStep, Emission, LaneOp, MoveLane, Outcome, PrefillChunk, Work
from bus.errors import Internal
from bus.ids import GenerationId, pack_ids
from bus.messages.parts import Finish, Segment
from bus.messages.sampling import Constraint, SamplingParams
from bus.messages.worker import Submit

EOS = 9

NEXT = 5

STEP, CHUNK = True, False

_FACTS = 3
#: What one token takes in the driver's memory.
TOKEN_BYTES = 8 * _FACTS
_MARK_BITS = 62

Cells = npt.NDArray[np.int64]


def submit(
    generation: int,
    context: int | list[int] = 4,
    *,
    max_new: int = 3,
    wall_ms: int = 0,
    segments: tuple[Segment, ...] = (),
    ignore_eos: bool = False,
    qos: int = 0,
    exact: bool = False,
    salt: bytes = b"",
    constraint: Constraint | None = None,
) -> Submit:
    ids = list(range(100, 100 + context)) if isinstance(context, int) else context
    return Submit(
        generation=GenerationId(generation),
        context=pack_ids(ids),
        sampling=SamplingParams(temperature=0.0, ignore_eos=ignore_eos, constraint=constraint),
        max_new_tokens=max_new,
        prompt_tokens=len(ids),
        wall_ms=wall_ms,
        segments=segments,
        qos=qos,
        exact=exact,
        salt=salt,
    )


def _cell(token: int, kind: bool, side: bool, before: Cells | None) -> Cells:
    mark = hash((token, kind, side, int(before[2]) if before is not None else 0))
    return np.array([token, kind, mark % (1 << _MARK_BITS)], np.int64)


class FaultyTransfers(Transfers):
    """Operations of the kinds in `failing` fail, as when the system has no memory."""

    failing: frozenset[type[LaneOp]] = frozenset()

    def _do(self, op: LaneOp) -> None:
        if type(op) in self.failing:
            raise Internal("no memory")
        super()._do(op)


def telling_token(context: Iterable[int]) -> int:
    """A next token that any change of the context changes, most likely."""
    return 10 + zlib.crc32(pack_ids(context)) % 4000


@dataclass
class Driver:
    """Runs turns as an engine does, and checks each against the lanes' contents.

    With `chunk_rate` and `step_s`, time passes as work takes it; else each unit takes `elapsed_s`
    and `now` stands still. With `telling`, the next token follows from the whole context.
    """

    lanes: int = 4
    window: int = 1000
    tokens: list[int | None] = field(default_factory=list)
    now: float = 0.0
    elapsed_s: float = 0.01
    host_bytes: int = 0
    chunk_rate: float = 0.0
    step_s: float = 0.0
    telling: bool = False
    grid: bool = False
    #: What fails next: "run", or "draw" for logits that are no numbers.
    failing: str = ""

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            lanes=self.lanes,
            window=self.window,
            vocab=5000,
            token_bytes=TOKEN_BYTES,
            host_kv_bytes=self.host_bytes,
            chunk_grid=self.grid,
        )
        shape = LaneShape(1, self.window, _FACTS, np.dtype(np.int64))
        self.slab = HostSlab(1, self.lanes, shape)
        self.transfers = FaultyTransfers(self.slab, self.host_bytes)
        #: What a generation's lane must hold, as far as it was looked at.
        self.expected: dict[int, Cells] = {}
        self.submits: dict[int, Submit] = {}
        self.chunks: list[tuple[int, int, int]] = []
        self.kinds: list[str] = []
        self.widths: list[int] = []
        self.ops: list[LaneOp] = []
        self.emitted: list[Emission] = []
        self.first_at: dict[int, float] = {}

    @property
    def moves(self) -> list[MoveLane]:
        return [op for op in self.ops if isinstance(op, MoveLane)]

    @property
    def prefilled(self) -> int:
        """Tokens that went by chunk."""
        return sum(size for _, _, size in self.chunks)

    def submit(self, message: Submit, *, held: bool = False) -> None:
        self.scheduler.submit(message, self.now, held=held)
        self.submits[int(message.generation)] = message
        self.check()

    def cancel(self, generation: int) -> None:
        self.scheduler.cancel(GenerationId(generation))
        self.check()

    def pause(self, generation: int) -> None:
        self.scheduler.pause(GenerationId(generation), self.now)
        self.check()

    def resume(self, generation: int) -> None:
        self.scheduler.resume(GenerationId(generation))
        self.check()

    def check(self) -> None:
        self.scheduler.check_integrity()
        if not self.scheduler.has_transfers:
            assert self.transfers.host.nbytes == self.scheduler.kv_host_bytes
        assert self.scheduler.kv_host_bytes <= self.host_bytes

    def turn(self) -> bool:
        """One turn; False when there was nothing to run."""
        work = self.scheduler.next_work(self.now)
        self.scheduler.check_integrity()
        if work is not None and self._transfer(work):
            if self.failing == "run":
                self.scheduler.fail(work, Internal("ONNX Runtime failed"))
            elif isinstance(work, PrefillChunk):
                self._run_chunk(work)
            elif isinstance(work, DecodeStep):
                self._run_step(work)
        self._emit()
        self.check()
        return work is not None

    def run(self) -> None:
        while self.turn():
            pass

    # --- lanes ----------------------------------------------------------------------------

    def _transfer(self, work: Work) -> bool:
        self.ops += work.ops
        lost = self.transfers.run(work.ops)
        assert not lost or self.transfers.failing, "an operation that could never be done"
        for op in lost:
            self.scheduler.lose(op)
        return not lost

    def _feed(self, lane: int, position: int, token: int, kind: bool, end: int) -> None:
        cells: Cells = self.slab.arrays[0][lane, 0]
        before = cells[position - 1] if position else None
        cells[position] = _cell(token, kind, self._side(position, end), before)

    def _side(self, position: int, end: int) -> bool:
        """Whether a chunk ends behind the middle of a position's block."""
        return self.grid and end > position // BLOCK * BLOCK + BLOCK // 2

    def _run_chunk(self, chunk: PrefillChunk) -> None:
        self.kinds.append("chunk")
        generation = int(chunk.sequence.generation)
        self.chunks.append((generation, chunk.past, len(chunk.ids)))
        self._check_lane(generation, chunk.lane, chunk.past)
        for position, token in enumerate(chunk.ids, chunk.past):
            self._feed(chunk.lane, position, token, CHUNK, chunk.past + len(chunk.ids))
        elapsed_s = self._pass(len(chunk.ids) / self.chunk_rate if self.chunk_rate else 0.0)
        drawn = self._draw(generation) if chunk.draw else None
        self.scheduler.commit_chunk(chunk, drawn, now=self.now, elapsed_s=elapsed_s)

    def _run_step(self, step: DecodeStep) -> None:
        self.kinds.append("step")
        self.widths.append(len(step.rows))
        for row, sequence in enumerate(step.rows):
            if sequence is not None:
                self._check_lane(int(sequence.generation), row, step.lengths[row] - 1)
        for lane, (token, length) in enumerate(zip(step.ids, step.lengths, strict=True)):
            self._feed(lane, length - 1, token, STEP, 0)
        elapsed_s = self._pass(self.step_s)
        drawing = [s for row in step.drawing if (s := step.rows[row])]
        drawn = [self._draw(int(sequence.generation)) for sequence in drawing]
        self.scheduler.commit_step(step, drawn, now=self.now, elapsed_s=elapsed_s)

    def _check_lane(self, generation: int, lane: int, length: int) -> None:
        """What a row attends to are its own tokens, and those it asks for exactly are just so."""
        sequence = self.scheduler._known[GenerationId(generation)]
        cells: Cells = self.slab.arrays[0][lane, 0, :length]
        expected = self._expected(generation, length)
        exact = length if sequence.exact else min(length, sequence.exact_tokens)
        assert (cells[:exact] == expected[:exact]).all()
        assert (cells[:, 0] == expected[:, 0]).all()
        assert (cells[:, 1] >= expected[:, 1]).all(), "a replay by step took over a chunk's"

    def _expected(self, generation: int, length: int) -> Cells:
        """What its lane holds when it computes everything itself."""
        sequence = self.scheduler._known[GenerationId(generation)]
        found = self.expected.setdefault(generation, np.zeros((0, _FACTS), np.int64))
        rows = list(found)
        for position in range(len(rows), length):
            end = self._end_of_chunk(sequence.spans, position)
            before = rows[-1] if rows else None
            side = self._side(position, end)
            rows.append(_cell(sequence.tokens[position], not end, side, before))
        if len(rows) > len(found):
            found = self.expected[generation] = np.array(rows)
        return found[:length]

    @staticmethod
    def _end_of_chunk(spans: Spans, position: int) -> int:
        """Where the chunk of a token ends when chunks are as long as they may be; 0 for a step."""
        past = 0
        for span in spans:
            if position >= span.stop:
                past = span.stop
            elif span.by_step:
                return 0
            else:
                while (end := last_end(past, span.stop)) <= position:
                    past = end
                return end
        return 0

    # --- what comes of it -----------------------------------------------------------------

    def _pass(self, seconds: float) -> float:
        """Let work take its time; how long it took."""
        if not seconds:
            return self.elapsed_s
        self.now += seconds
        return seconds

    def _draw(self, generation: int) -> Outcome:
        token = self.tokens.pop(0) if self.tokens else NEXT
        if self.telling:
            token = telling_token(self.scheduler._known[GenerationId(generation)].tokens)
        if token is None or self.failing == "draw":
            return Outcome(None, error=Internal("logits are no numbers"))
        ignore = self.submits[generation].sampling.ignore_eos
        return Outcome(token, reason="eos" if token == EOS and not ignore else "")

    def _emit(self) -> None:
        for emission in self.scheduler.take_emissions():
            generation = int(emission.generation)
            assert emission.index == len(self.ids(generation)), "lost, repeated or reordered"
            assert not any(e.finish for e in self.emitted if e.generation == generation)
            self.emitted.append(emission)
            if emission.token is not None:
                self.first_at.setdefault(generation, self.now)

    def ids(self, generation: int) -> list[int]:
        return [e.token for e in self.emitted if e.generation == generation and e.token is not None]

    def finish(self, generation: int) -> Finish:
        (finish,) = [e.finish for e in self.emitted if e.generation == generation and e.finish]
        return finish
