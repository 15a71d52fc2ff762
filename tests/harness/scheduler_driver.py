"""Drives a scheduler as an engine does: a dict of what was fed takes the model's place."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.worker.scheduler import (
    DecodeStep,
    Emission,
    MoveLane,
    PrefillChunk,
    Scheduler,
)
from bus.ids import GenerationId, pack_ids
from bus.messages.parts import Finish, Segment
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Submit

EOS = 9

NEXT = 5

STEP, CHUNK = True, False


def submit(
    generation: int,
    context: int | list[int] = 4,
    *,
    max_new: int = 3,
    wall_ms: int = 0,
    segments: tuple[Segment, ...] = (),
    ignore_eos: bool = False,
) -> Submit:
    ids = list(range(100, 100 + context)) if isinstance(context, int) else context
    return Submit(
        generation=GenerationId(generation),
        context=pack_ids(ids),
        sampling=SamplingParams(temperature=0.0, ignore_eos=ignore_eos),
        max_new_tokens=max_new,
        prompt_tokens=len(ids),
        wall_ms=wall_ms,
        segments=segments,
    )


@dataclass
class Driver:
    """Runs turns as an engine does, and checks each against the lanes' contents.

    `cells[lane]` holds, for each position, the token fed and whether by step: what a KV slab would
    depend on. `fed` keeps, for each generation, the same of its own tokens.
    """

    lanes: int = 4
    window: int = 1000
    tokens: list[int | None] = field(default_factory=list)
    now: float = 0.0
    elapsed_s: float = 0.01

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(lanes=self.lanes, window=self.window, vocab=5000, eos_ids=[EOS])
        self.cells: list[dict[int, tuple[int, bool]]] = [{} for _ in range(self.lanes)]
        self.chunks: list[tuple[int, int, int]] = []
        self.kinds: list[str] = []
        self.widths: list[int] = []
        self.moves: list[MoveLane] = []
        self.emitted: list[Emission] = []

    def submit(self, message: Submit) -> None:
        self.scheduler.submit(message, self.now)
        self.scheduler.check_integrity()

    def turn(self) -> bool:
        """One turn; False when there was nothing to run."""
        work = self.scheduler.next_work(self.now)
        if isinstance(work, PrefillChunk):
            self._run_chunk(work)
        elif isinstance(work, DecodeStep):
            self._run_step(work)
        self.emitted += self.scheduler.take_emissions()
        self.scheduler.check_integrity()
        return work is not None

    def run(self) -> None:
        while self.turn():
            pass

    def _run_chunk(self, chunk: PrefillChunk) -> None:
        self.kinds.append("chunk")
        self.chunks.append((int(chunk.sequence.generation), chunk.past, len(chunk.ids)))
        for position, token in enumerate(chunk.ids, chunk.past):
            self.cells[chunk.lane][position] = (token, CHUNK)
        drawn: int | None = None
        if chunk.draw:
            self._check_lane(chunk.sequence.generation, chunk.lane, chunk.past + len(chunk.ids))
            drawn = self._next_token()
        self.scheduler.commit_chunk(chunk, drawn, now=self.now, elapsed_s=self.elapsed_s)

    def _run_step(self, step: DecodeStep) -> None:
        self.kinds.append("step")
        self.widths.append(len(step.rows))
        self.moves += step.moves
        for move in step.moves:
            self.cells[move.dst] = {p: self.cells[move.src][p] for p in range(move.tokens)}
        for lane, (token, length) in enumerate(zip(step.ids, step.lengths, strict=True)):
            self.cells[lane][length - 1] = (token, STEP)
        for row in step.drawing:
            sequence = step.rows[row]
            assert sequence is not None
            self._check_lane(sequence.generation, row, step.lengths[row])
        drawn = [self._next_token() for _ in step.drawing]
        self.scheduler.commit_step(step, drawn, now=self.now, elapsed_s=self.elapsed_s)

    def _check_lane(self, generation: int, lane: int, length: int) -> None:
        """Every cell a drawing row attends to holds its own token, fed the way it must be."""
        sequence = self.scheduler._known[GenerationId(generation)]
        want, start = [], 0
        for span in sequence.spans:
            want += [span.by_step] * (span.stop - start)
            start = span.stop
        want += [STEP] * (length - start)
        got = [self.cells[lane][position] for position in range(length)]
        assert got == list(zip(sequence.tokens[:length], want, strict=True))

    def _next_token(self) -> int | None:
        return self.tokens.pop(0) if self.tokens else NEXT

    def ids(self, generation: int) -> list[int]:
        return [e.token for e in self.emitted if e.generation == generation and e.token is not None]

    def finish(self, generation: int) -> Finish:
        (finish,) = [e.finish for e in self.emitted if e.generation == generation and e.finish]
        return finish
