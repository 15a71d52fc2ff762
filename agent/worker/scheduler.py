"""Who runs next: sequences, lanes and the shape of a turn. Pure: no clock, no arrays, no model.

A turn is one unit of work: a prefill chunk of one sequence, or a decode step of all that are ready
for one. While both kinds wait they alternate, so between two steps there is at most one chunk, and
a decoding stream waits for no longer than the turn target. The owner asks `next_work`, runs it,
and gives the outcome to `commit_chunk`, `commit_step` or `fail`; between turns it may submit,
cancel, pause and resume, which act at once. What sequences gave comes out of `take_emissions`.

Lanes are kept dense at the low end: a step runs rows 0 to the highest ready one, and a free row
below that is first filled by moving the highest ready lane into it. A row in between that is
paused or prefilling runs along and is not advanced: it is fed its own next token, whose keys and
values are written again, the right way, when the sequence itself goes on.

First come, first served: one sequence prefills at a time, and those that wait start in order.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from agent.worker.sequence import Sequence, make_sequence
from bus.errors import ContextLengthExceeded, Internal, Invalid, QueueFull, SuperfluidError
from bus.ids import GenerationId, count_ids, unpack_ids
from bus.messages.parts import Finish
from bus.messages.worker import Submit

#: Submits that may wait beside one for each lane. Queueing is the head's; this bridges a turn.
EXTRA_WAITING = 8
#: Chunks are bit-equal to each other from 2 to 128 tokens, and no faster beyond.
MAX_CHUNK_TOKENS = 128
#: Shorter chunks cost prefill more than half its speed.
MIN_CHUNK_TOKENS = 32
#: A chunk of one would round like a step.
LEAST_SPLIT_TOKENS = 2
#: A turn aims at this, or at two decode steps when they take longer.
TURN_TARGET_S = 0.050
NON_FINITE_LOGITS = (
    "the model gave logits that are no numbers; if it does so again, check the model folder with "
    "`sfctl model ls` or import the model again"
)
#: Weight of the newest measurement of chunk and step times.
_NEWEST = 0.25


@dataclass(frozen=True, slots=True)
class MoveLane:
    """Copy the first `tokens` tokens of lane `src` to lane `dst` before the step runs."""

    src: int
    dst: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Feed `ids` to a lane that holds `past` tokens; `draw` when the next token follows from it."""

    sequence: Sequence
    lane: int
    past: int
    ids: array[int]
    draw: bool


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Feed one token to each of rows 0 to B-1.

    Attributes:
        rows: the sequence of each row, or None for one that runs along and is not advanced.
        ids: the token of each row.
        lengths: tokens in each lane after the step.
        drawing: rows whose next token follows from this step.
    """

    moves: list[MoveLane]
    rows: list[Sequence | None]
    ids: list[int]
    lengths: list[int]
    drawing: list[int]


@dataclass(frozen=True, slots=True)
class Emission:
    """A token, or the end of a generation, or both. `index` counts from the generation's start."""

    generation: GenerationId
    index: int
    token: int | None
    finish: Finish | None


class Scheduler:
    """Owns the sequences and says what runs next. Driven by one `Engine`.

    Invariant: a lane belongs to at most one sequence, and a sequence is in `_waiting` or in a lane.

    Args:
        lanes: rows of the slab.
        window: most tokens of a context with what it generates.
        vocab: token ids are below.
        eos_ids: ids that end a sequence.
    """

    def __init__(self, *, lanes: int, window: int, vocab: int, eos_ids: SequenceOf[int]) -> None:
        self.window = window
        self._vocab = vocab
        self._eos = frozenset(eos_ids)
        self._lanes: list[Sequence | None] = [None] * lanes
        self._waiting: list[Sequence] = []
        self._known: dict[GenerationId, Sequence] = {}
        self._emissions: list[Emission] = []
        self._arrivals = 0
        self._chunk_was_last = False
        #: Smoothed seconds of a step and tokens/s of chunks; 0 is not yet measured.
        self.step_s = 0.0
        self.chunk_rate = 0.0

    # --- what the agent says --------------------------------------------------------------

    def submit(self, submit: Submit, now: float) -> None:
        """Take a generation in. One that is known already changes nothing.

        Raises:
            Invalid: an empty context, a token id outside the vocabulary, segments that do not fit.
            ContextLengthExceeded: the context is longer than the window.
            QueueFull: too many wait.
        """
        if submit.generation in self._known:
            return
        _check(submit, window=self.window, vocab=self._vocab)
        if len(self._waiting) >= len(self._lanes) + EXTRA_WAITING:
            raise QueueFull(
                f"{len(self._waiting)} generations wait for this worker; try again when one ends"
            )
        sequence = make_sequence(submit, arrival=self._arrivals, window=self.window, now=now)
        self._arrivals += 1
        self._known[submit.generation] = sequence
        self._waiting.append(sequence)
        if len(sequence.tokens) >= sequence.token_limit:
            self._end(sequence, sequence.finish("length"))

    def cancel(self, generation: GenerationId) -> None:
        """End a generation with `cancelled`; an unknown one is passed over."""
        sequence = self._known.get(generation)
        if sequence is not None:
            self._end(sequence, sequence.finish("cancelled"))

    def pause(self, generation: GenerationId, paused: bool = True) -> None:
        """Make no more tokens of a generation, or go on; an unknown one is passed over."""
        sequence = self._known.get(generation)
        if sequence is not None:
            sequence.paused = paused

    # --- what runs next -------------------------------------------------------------------

    def next_work(self, now: float) -> PrefillChunk | DecodeStep | None:
        """The next unit of work, or None when nothing can run. Run it, then commit it."""
        self._expire(now)
        self._admit()
        ready = self._running(chunk=False)
        prefilling = self._running(chunk=True)
        if prefilling and not (ready and self._chunk_was_last):
            self._chunk_was_last = True
            first = min(prefilling, key=lambda sequence: sequence.arrival)
            return self._cut_chunk(first, beside_decode=bool(ready))
        self._chunk_was_last = False
        return self._make_step(ready) if ready else None

    def _running(self, *, chunk: bool) -> list[Sequence]:
        """Sequences in lanes that may run, in lane order."""
        return [s for s in self._lanes if s and not s.paused and s.wants_chunk == chunk]

    def _expire(self, now: float) -> None:
        late = [s for s in self._known.values() if s.deadline_s is not None and now >= s.deadline_s]
        for sequence in late:
            self._end(sequence, sequence.finish("expired"))

    def _admit(self) -> None:
        """Give free lanes to those that wait, in order, until one of them has to prefill."""
        for sequence in [s for s in self._waiting if not s.paused]:
            if None not in self._lanes or self._running(chunk=True):
                return
            self._waiting.remove(sequence)
            sequence.lane = self._lanes.index(None)
            self._lanes[sequence.lane] = sequence

    def _cut_chunk(self, sequence: Sequence, *, beside_decode: bool) -> PrefillChunk:
        left = sequence.chunk_left
        size = min(left, self._chunk_tokens() if beside_decode else MAX_CHUNK_TOKENS)
        if 0 < left - size < LEAST_SPLIT_TOKENS:
            size -= LEAST_SPLIT_TOKENS - (left - size)
        past, stop = sequence.computed, sequence.computed + size
        ids, draw = sequence.tokens[past:stop], stop == len(sequence.tokens)
        return PrefillChunk(sequence, lane_of(sequence), past, ids, draw)

    def _chunk_tokens(self) -> int:
        """What fits beside a step into the turn target."""
        room_s = max(TURN_TARGET_S, 2 * self.step_s) - self.step_s
        return min(max(int(room_s * self.chunk_rate), MIN_CHUNK_TOKENS), MAX_CHUNK_TOKENS)

    def _make_step(self, ready: list[Sequence]) -> DecodeStep:
        moves = self._fill_holes(ready)
        width = 1 + max(lane_of(sequence) for sequence in ready)
        step = DecodeStep(moves, [], [], [], [])
        for lane, sequence in enumerate(self._lanes[:width]):
            if sequence is None:
                raise Internal(f"lane {lane} below a running one is empty")
            step.ids.append(sequence.tokens[sequence.computed])
            step.lengths.append(sequence.computed + 1)
            runs = not sequence.paused and not sequence.wants_chunk
            step.rows.append(sequence if runs else None)
            if runs and step.lengths[lane] == len(sequence.tokens):
                step.drawing.append(lane)
        return step

    def _fill_holes(self, ready: list[Sequence]) -> list[MoveLane]:
        moves: list[MoveLane] = []
        while None in self._lanes:
            hole = self._lanes.index(None)
            top = max(ready, key=lane_of)
            source = lane_of(top)
            if hole > source:
                break
            moves.append(MoveLane(source, hole, top.computed))
            self._lanes[source], self._lanes[hole] = None, top
            top.lane = hole
        return moves

    # --- what came of it ------------------------------------------------------------------

    def commit_chunk(
        self, chunk: PrefillChunk, token: int | None, *, now: float, elapsed_s: float
    ) -> None:
        """Count a chunk that ran.

        Args:
            chunk: from `next_work`.
            token: what was drawn; None for logits that are no numbers, or when `draw` is false.
            now: when it ended.
            elapsed_s: how long it took.
        """
        if len(chunk.ids) >= MIN_CHUNK_TOKENS and elapsed_s > 0:
            self.chunk_rate = _smooth(self.chunk_rate, len(chunk.ids) / elapsed_s)
        if chunk.sequence.advance(len(chunk.ids)):
            self._take(chunk.sequence, token, now)

    def commit_step(
        self, step: DecodeStep, tokens: SequenceOf[int | None], *, now: float, elapsed_s: float
    ) -> None:
        """Count a step that ran.

        Args:
            step: from `next_work`.
            tokens: what was drawn in the rows `step.drawing`; None for logits that are no numbers.
            now: when it ended.
            elapsed_s: how long it took.
        """
        self.step_s = _smooth(self.step_s, elapsed_s)
        for sequence in step.rows:
            if sequence is not None:
                sequence.advance(1)
        for row, token in zip(step.drawing, tokens, strict=True):
            sequence = step.rows[row]
            if sequence is not None:
                self._take(sequence, token, now)

    def fail(self, work: PrefillChunk | DecodeStep, error: SuperfluidError) -> None:
        """End the generations of a unit of work that could not run."""
        rows = [work.sequence] if isinstance(work, PrefillChunk) else work.rows
        for sequence in rows:
            if sequence is not None:
                self._end(sequence, sequence.error(error))

    def take_emissions(self) -> list[Emission]:
        """What happened since the last call, in order."""
        taken, self._emissions = self._emissions, []
        return taken

    def _take(self, sequence: Sequence, token: int | None, now: float) -> None:
        if token is None:
            self._end(sequence, sequence.error(Internal(NON_FINITE_LOGITS)))
            return
        sequence.tokens.append(token)
        reason = self._reason_to_end(sequence, token, now)
        if reason:
            self._end(sequence, sequence.finish(reason), token)
        else:
            self._emit(sequence, token, None)

    def _reason_to_end(self, sequence: Sequence, token: int, now: float) -> str:
        """Why a sequence ends with this token, or nothing. Expired goes before eos and length."""
        if sequence.deadline_s is not None and now >= sequence.deadline_s:
            return "expired"
        if token in self._eos and not sequence.sampling.ignore_eos:
            return "eos"
        return "length" if len(sequence.tokens) >= sequence.token_limit else ""

    def _end(self, sequence: Sequence, finish: Finish, token: int | None = None) -> None:
        self._emit(sequence, token, finish)
        del self._known[sequence.generation]
        if sequence.lane is None:
            self._waiting.remove(sequence)
        else:
            self._lanes[sequence.lane] = None
            sequence.lane = None

    def _emit(self, sequence: Sequence, token: int | None, finish: Finish | None) -> None:
        index = sequence.generated - (token is not None)
        self._emissions.append(Emission(sequence.generation, index, token, finish))

    # --- figures --------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether a turn would do nothing until someone submits, resumes, or time passes."""
        waiting = None in self._lanes and any(not s.paused for s in self._waiting)
        running = any(s is not None and not s.paused for s in self._lanes)
        return not (waiting or running or self._emissions)

    @property
    def lanes_used(self) -> int:
        return len(self._lanes) - self._lanes.count(None)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def kv_live_tokens(self) -> int:
        """Tokens whose keys and values the lanes hold."""
        return sum(sequence.computed for sequence in self._lanes if sequence)

    def next_deadline(self) -> float | None:
        """When the next wall budget is used up."""
        return min(
            (s.deadline_s for s in self._known.values() if s.deadline_s is not None), default=None
        )

    def check_integrity(self) -> None:
        """For tests, after every event.

        Raises:
            Internal: the sequences contradict each other.
        """
        placed = [sequence for sequence in self._lanes if sequence]
        sound = (
            sorted(s.arrival for s in placed + self._waiting)
            == sorted(s.arrival for s in self._known.values())
            and all(self._lanes[lane_of(sequence)] is sequence for sequence in placed)
            and all(sequence.lane is None for sequence in self._waiting)
            and all(0 <= s.computed < len(s.tokens) <= self.window for s in self._known.values())
        )
        if not sound:
            raise Internal(f"the scheduler contradicts itself: {self._lanes}, {self._waiting}")


def lane_of(sequence: Sequence) -> int:
    """The lane of a sequence that has one."""
    if sequence.lane is None:
        raise Internal(f"generation {sequence.generation} has no lane")
    return sequence.lane


def _smooth(old: float, new: float) -> float:
    return new if not old else old + _NEWEST * (new - old)


def _check(submit: Submit, *, window: int, vocab: int) -> None:
    length = count_ids(submit.context)
    if not length:
        raise Invalid("the prompt is empty; give at least one token", param="prompt")
    if length > window:
        raise ContextLengthExceeded(
            f"the context has {length} tokens and this worker's window {window}; shorten it",
            param="prompt",
            details={"length": length, "max": window},
        )
    # The graph's gather does not check ids: it would read what lies behind the table.
    largest = max(unpack_ids(submit.context))
    if largest >= vocab:
        raise Invalid(
            f"token id {largest} is not below the vocabulary's {vocab}; use this model's tokenizer",
            param="prompt",
        )
    covered = sum(segment.tokens for segment in submit.segments)
    if submit.segments and covered != length:
        raise Invalid(
            f"the segments cover {covered} tokens and the context has {length}", param="segments"
        )
