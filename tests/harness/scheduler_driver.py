"""Drives a scheduler as an engine does: lists of what was fed take the model's place.

A lane is a list of cells, one for each position: the token fed, whether by step, and the mark of
the sequence state it was fed in, which stands for the bits of its keys and values. Cells that hang
on other cells before them have another mark, so a lane put together wrongly shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.worker.scheduler import Scheduler
from agent.worker.work import (
    CopyPrefix,
    DecodeStep,
    DropSaved,
    Emission,
    LaneOp,
    LoadLane,
    MoveLane,
    Outcome,
    PrefillChunk,
    SaveLane,
    Transfers,
    Work,
)
from bus.errors import Internal
from bus.ids import GenerationId, pack_ids
from bus.messages.parts import Finish, Segment
from bus.messages.sampling import Constraint, SamplingParams
from bus.messages.worker import Submit

EOS = 9

NEXT = 5

STEP, CHUNK = True, False

#: What one token takes in the driver's host memory.
TOKEN_BYTES = 10

#: Token, whether by step, hash of this and all cells before it.
Cell = tuple[int, bool, int]


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


@dataclass
class Driver:
    """Runs turns as an engine does, and checks each against the lanes' contents.

    `chunk_rate` and `step_s` set, time passes as work takes it; else each unit takes `elapsed_s`
    and `now` stands still.
    """

    lanes: int = 4
    window: int = 1000
    tokens: list[int | None] = field(default_factory=list)
    now: float = 0.0
    elapsed_s: float = 0.01
    host_bytes: int = 0
    chunk_rate: float = 0.0
    step_s: float = 0.0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            lanes=self.lanes,
            window=self.window,
            vocab=5000,
            token_bytes=TOKEN_BYTES,
            host_kv_bytes=self.host_bytes,
        )
        self.cells: list[list[Cell]] = [[] for _ in range(self.lanes)]
        self.saved: dict[int, list[Cell]] = {}
        self.submits: dict[int, Submit] = {}
        self.chunks: list[tuple[int, int, int]] = []
        self.kinds: list[str] = []
        self.widths: list[int] = []
        self.ops: list[LaneOp] = []
        self.emitted: list[Emission] = []
        self.first_at: dict[int, float] = {}
        #: Operations that fail when they come.
        self.failing: set[type[LaneOp]] = set()

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
        if not self.scheduler.has_transfers and not self.failing:
            saved = sum(TOKEN_BYTES * len(cells) for cells in self.saved.values())
            assert saved == self.scheduler.kv_host_bytes
        assert self.scheduler.kv_host_bytes <= self.host_bytes

    def turn(self) -> bool:
        """One turn; False when there was nothing to run."""
        work = self.scheduler.next_work(self.now)
        self.check()
        if work is not None and self._transfer(work):
            if isinstance(work, PrefillChunk):
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
        lost = [op for op in work.ops if not self._do(op)]
        for op in lost:
            self.scheduler.lose(op)
        if isinstance(work, Transfers):
            self.kinds.append("transfers")
        return not lost

    def _do(self, op: LaneOp) -> bool:
        self.ops.append(op)
        if type(op) in self.failing:
            return False
        match op:
            case MoveLane() | CopyPrefix():
                assert len(self.cells[op.src]) >= op.tokens
                self.cells[op.dst] = self.cells[op.src][: op.tokens]
            case SaveLane():
                assert op.entry not in self.saved
                assert len(self.cells[op.lane]) >= op.tokens > 0
                self.saved[op.entry] = self.cells[op.lane][: op.tokens]
                assert sum(TOKEN_BYTES * len(c) for c in self.saved.values()) <= self.host_bytes
            case LoadLane():
                assert len(self.saved[op.entry]) >= op.tokens > 0
                self.cells[op.lane] = self.saved[op.entry][: op.tokens]
            case DropSaved():
                del self.saved[op.entry]
        return True

    def _feed(self, lane: int, position: int, token: int, kind: bool) -> None:
        cells = self.cells[lane]
        assert len(cells) >= position, "a run would attend to what was never fed"
        del cells[position:]
        mark = hash((token, kind, cells[-1][2] if cells else 0))
        cells.append((token, kind, mark))

    def _run_chunk(self, chunk: PrefillChunk) -> None:
        self.kinds.append("chunk")
        generation = int(chunk.sequence.generation)
        self.chunks.append((generation, chunk.past, len(chunk.ids)))
        self._check_lane(generation, chunk.lane, chunk.past)
        for position, token in enumerate(chunk.ids, chunk.past):
            self._feed(chunk.lane, position, token, CHUNK)
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
            self._feed(lane, length - 1, token, STEP)
        elapsed_s = self._pass(self.step_s)
        drawing = [s for row in step.drawing if (s := step.rows[row])]
        drawn = [self._draw(int(sequence.generation)) for sequence in drawing]
        self.scheduler.commit_step(step, drawn, now=self.now, elapsed_s=elapsed_s)

    def _check_lane(self, generation: int, lane: int, length: int) -> None:
        """What a row attends to are its own tokens, and those it asks for exactly are just so."""
        sequence = self.scheduler._known[GenerationId(generation)]
        cells = self.cells[lane][:length]
        assert [cell[0] for cell in cells] == list(sequence.tokens[:length])
        exact_tokens = length if sequence.exact else min(length, sequence.exact_tokens)
        mark = 0
        for position in range(exact_tokens):
            want = next((s.by_step for s in sequence.spans if position < s.stop), STEP)
            mark = hash((sequence.tokens[position], want, mark))
            assert cells[position] == (sequence.tokens[position], want, mark)
        for position in range(exact_tokens, length):
            want = next((s.by_step for s in sequence.spans if position < s.stop), STEP)
            assert cells[position][1] or not want, "a replay by step took a chunk's"

    # --- what comes of it -----------------------------------------------------------------

    def _pass(self, seconds: float) -> float:
        """Let work take its time; how long it took."""
        if not seconds:
            return self.elapsed_s
        self.now += seconds
        return seconds

    def _draw(self, generation: int) -> Outcome:
        token = self.tokens.pop(0) if self.tokens else NEXT
        if token is None:
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
