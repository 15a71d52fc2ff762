"""Who runs next: sequences, lanes and the shape of a turn. Pure: no clock, no arrays, no model.

A turn is a prefill chunk of one sequence and then a decode step of all that are ready for one
(`turns`). The owner asks `next_work`, runs it, and gives the outcome to `commit_chunk`,
`commit_step` or `fail`; between two units of work it may submit, cancel, pause and resume, which
act at once. What sequences gave comes out of `take_emissions`.

    submit ──▶ waits ──admitted──▶ has a lane: chunks, then steps ──▶ ended
                 ▲                      │
                 └──────preempted───────┘     (and from everywhere: cancelled, expired)

On its way into a lane (`admission`) a sequence takes over what others have computed (`reuse`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from agent.worker.admission import Admission
from agent.worker.lanes import Lanes, lane_of
from agent.worker.refusal import NON_FINITE_LOGITS
from agent.worker.reuse import Reuse
from agent.worker.sequence import Sequence, make_sequence
from agent.worker.submit_check import check_submit
from agent.worker.turns import TurnPacer
from agent.worker.work import (
    DecodeStep,
    DropSaved,
    Emission,
    LaneOp,
    LoadLane,
    Outcome,
    PrefillChunk,
    SaveLane,
    TakeRestored,
    Transfers,
    Work,
)
from bus.errors import Internal, QueueFull, SuperfluidError
from bus.ids import GenerationId
from bus.messages.parts import Finish
from bus.messages.worker import Submit

#: Submits that may wait beside one for each lane. Queueing is the head's; this bridges a turn, and
#: lets requests that share a prefix wait for it here.
EXTRA_WAITING = 32


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Who runs on the same processors, of other schedulers.

    Attributes:
        any: whether there is a sequence.
        decoding: the best class of those that decode; None when none does.
    """

    any: bool = False
    decoding: int | None = None


ALONE = Neighbours()


class Scheduler:
    """Owns the sequences and says what runs next. Driven by one `Engine`.

    Invariant: a known sequence waits in `_admission` or has a lane.

    Args:
        lanes: rows of the slab.
        window: most tokens of a context with what it generates.
        vocab: token ids are below.
        token_bytes: keys and values of one token.
        host_kv_bytes: of host memory, for prefixes and preempted lanes; 0 is neither.
        prefix_seed: what the hashes of a salt's prefixes begin with, 1 to 64 bytes.
        chunk_grid: whether chunks keep to the middles of blocks (`chunk_grid`).
        long_chunks: whether the runner takes chunks of `LONE_CHUNK_TOKENS`.
    """

    def __init__(
        self,
        *,
        lanes: int,
        window: int,
        vocab: int,
        token_bytes: int = 1,
        host_kv_bytes: int = 0,
        prefix_seed: Callable[[bytes], bytes] = lambda salt: b"prefix" + salt,
        chunk_grid: bool = False,
        long_chunks: bool = False,
    ) -> None:
        self.window = window
        self.pacer = TurnPacer(grid=chunk_grid, long_chunks=long_chunks)
        self._vocab = vocab
        self._lanes = Lanes(lanes)
        self.reuse = Reuse(
            budget_bytes=host_kv_bytes, token_bytes=token_bytes, seed=prefix_seed, grid=chunk_grid
        )
        self._admission = Admission(self._lanes, self.reuse)
        self._known: dict[GenerationId, Sequence] = {}
        self._emissions: list[Emission] = []
        self._arrivals = 0

    # --- what the agent says --------------------------------------------------------------

    def submit(self, submit: Submit, now: float, *, held: bool = False) -> None:
        """Take a generation in. One that is known already changes nothing.

        Args:
            submit: the generation.
            now: seconds.
            held: it starts when `release` is called.

        Raises:
            Invalid: see `check_submit`.
            ContextLengthExceeded: the context is longer than the window.
            QueueFull: too many wait.
        """
        if self.knows(submit.generation):
            return
        self.check(submit)
        if self.queued >= len(self._lanes) + EXTRA_WAITING:
            raise QueueFull(
                f"{self.queued} generations wait for this worker; try again when one ends"
            )
        sequence = make_sequence(submit, arrival=self._arrivals, window=self.window, now=now)
        sequence.held = held
        self._arrivals += 1
        self._known[submit.generation] = sequence
        self._admission.add(sequence, now)
        if len(sequence.tokens) >= sequence.token_limit:
            self._end(sequence, sequence.finish("length"))

    def check(self, submit: Submit) -> None:
        """Raise what `submit` would for a generation that can never run; see `check_submit`."""
        check_submit(submit, window=self.window, vocab=self._vocab)

    def knows(self, generation: GenerationId) -> bool:
        """Whether a generation was submitted, and its end was not taken yet."""
        return generation in self._known or any(
            emission.generation == generation for emission in self._emissions
        )

    def waits(self, generation: GenerationId) -> bool:
        """Whether a generation is known and has no lane."""
        sequence = self._known.get(generation)
        return sequence is not None and sequence in self._admission.waiting

    def hold(self, generation: GenerationId) -> None:
        """Keep a generation that has not begun from starting until `release`."""
        if generation in self._known:
            self._known[generation].held = True

    def release(self, generation: GenerationId) -> None:
        """Let a held generation start; an unknown one is passed over."""
        if generation in self._known:
            self._known[generation].held = False

    def refuse(self, generation: GenerationId, error: SuperfluidError) -> None:
        """End a generation with a fault of its own; an unknown one is passed over."""
        sequence = self._known.get(generation)
        if sequence is not None:
            self._end(sequence, sequence.error(error))

    def cancel(self, generation: GenerationId) -> None:
        """End a generation with `cancelled`; an unknown one is passed over."""
        sequence = self._known.get(generation)
        if sequence is not None:
            self._end(sequence, sequence.finish("cancelled"))

    def pause(self, generation: GenerationId, now: float) -> None:
        """Make no more tokens of a generation; an unknown one is passed over."""
        sequence = self._known.get(generation)
        if sequence is not None and not sequence.paused:
            sequence.paused, sequence.paused_since = True, now

    def resume(self, generation: GenerationId) -> None:
        """Go on with a paused generation; an unknown one is passed over."""
        if generation in self._known:
            self._known[generation].paused = False

    # --- what runs next -------------------------------------------------------------------

    def next_work(self, now: float, neighbours: Neighbours = ALONE) -> Work | None:
        """The next unit of work, or None when there is nothing to do. Run it, then commit it."""
        self._expire(now)
        self._admission.admit(now)
        ready = self._lanes.running(chunk=False)
        prefilling = self._lanes.running(chunk=True)
        if not prefilling:
            self.pacer.no_prefill()
        elif self.pacer.chunk_is_next(decoding=bool(ready)):
            level, first = min(
                ((self._admission.rank(s, now), s) for s in prefilling), key=lambda pair: pair[0]
            )
            classes = [s.qos for s in ready]
            if neighbours.decoding is not None:
                classes.append(neighbours.decoding)
            # Who is of a lower class does not make the chunks of a better one shorter.
            beside = min((qos for qos in classes if qos <= level[0]), default=None)
            return self._cut_chunk(first, beside, alone=not neighbours.any)
        if ready:
            return self._make_step(ready)
        return Transfers(self._lanes.take_ops()) if self._lanes.has_ops else None

    def _expire(self, now: float) -> None:
        late = [s for s in self._known.values() if s.deadline_s is not None and now >= s.deadline_s]
        for sequence in late:
            self._end(sequence, sequence.finish("expired"))

    # --- units of work --------------------------------------------------------------------

    def _cut_chunk(self, sequence: Sequence, beside: int | None, *, alone: bool) -> PrefillChunk:
        past = sequence.computed
        lone = alone and sequence.qos == 0 and len(self._known) == 1
        stop = past + self.pacer.chunk_tokens(past, sequence.chunk_stop, beside, lone=lone)
        ids, draw = sequence.tokens[past:stop], stop == len(sequence.tokens)
        return PrefillChunk(self._lanes.take_ops(), sequence, lane_of(sequence), past, ids, draw)

    def _make_step(self, ready: list[Sequence]) -> DecodeStep:
        self._lanes.fill_holes(ready)
        width = 1 + max(lane_of(sequence) for sequence in ready)
        step = DecodeStep(self._lanes.take_ops(), [], [], [], [])
        for lane, sequence in enumerate(self._lanes.rows[:width]):
            if sequence is None:
                raise Internal(f"lane {lane} below a running one is empty")
            length = sequence.computed + 1
            step.ids.append(sequence.tokens[sequence.computed])
            step.lengths.append(length)
            runs = not sequence.paused and not sequence.wants_chunk
            step.rows.append(sequence if runs else None)
            if runs and length == len(sequence.tokens):
                step.drawing.append(lane)
        return step

    # --- what came of it ------------------------------------------------------------------

    def commit_chunk(
        self, chunk: PrefillChunk, outcome: Outcome | None, *, now: float, elapsed_s: float
    ) -> None:
        """Count a chunk that ran.

        Args:
            chunk: from `next_work`.
            outcome: what was drawn; None when `draw` is false.
            now: when it ended.
            elapsed_s: how long it took.
        """
        self.pacer.ran_chunk(len(chunk.ids), elapsed_s)
        if chunk.sequence.advance(len(chunk.ids)) and outcome is not None:
            self._take(chunk.sequence, outcome, now)

    def advance_chunk(self, chunk: PrefillChunk) -> None:
        """Count the tokens of a chunk that nothing is drawn from; its run comes before others."""
        chunk.sequence.advance(len(chunk.ids))

    def commit_step(
        self, step: DecodeStep, outcomes: SequenceOf[Outcome], *, now: float, elapsed_s: float
    ) -> None:
        """Count a step that ran.

        Args:
            step: from `next_work`.
            outcomes: what was drawn in the rows `step.drawing`.
            now: when it ended.
            elapsed_s: how long it took.
        """
        self.pacer.ran_step(elapsed_s)
        for sequence in step.rows:
            if sequence is not None:
                sequence.advance(1)
        for row, outcome in zip(step.drawing, outcomes, strict=True):
            sequence = step.rows[row]
            if sequence is not None:
                self._take(sequence, outcome, now)

    def fail(self, work: Work, error: SuperfluidError) -> None:
        """End the generations of a unit of work that could not run."""
        rows: list[Sequence | None] = []
        if isinstance(work, PrefillChunk):
            rows = [work.sequence]
        elif isinstance(work, DecodeStep):
            rows = work.rows
        for sequence in rows:
            if sequence is not None:
                self._end(sequence, sequence.error(error))

    def lose(self, op: LaneOp) -> None:
        """An operation failed: what it was to keep or bring is computed again.

        The unit of work that carried it is not run; the operations behind it are done.
        """
        if isinstance(op, SaveLane | TakeRestored):
            self._admission.lose_saved(op.entry)
        elif not isinstance(op, DropSaved):
            lane = op.lane if isinstance(op, LoadLane) else op.dst
            for sequence in [s for s in self._lanes if s.lane == lane]:
                sequence.rewind()

    def add_transfers(self, ops: Iterable[LaneOp]) -> None:
        """Have operations done with the next unit of work, after those that wait already."""
        self._lanes.add_ops(ops)

    def take_emissions(self) -> list[Emission]:
        """What happened since the last call, in order."""
        taken, self._emissions = self._emissions, []
        return taken

    def _take(self, sequence: Sequence, outcome: Outcome, now: float) -> None:
        token = outcome.token
        if token is None:
            self._end(sequence, sequence.error(outcome.error or Internal(NON_FINITE_LOGITS)))
            return
        sequence.tokens.append(token)
        if sequence.waits_since is not None:
            sequence.stop_waiting(now)
        reason = sequence.reason_to_end(outcome.reason, now)
        if reason:
            stop = outcome.stop if reason == "stop" else ""
            self._end(sequence, sequence.finish(reason, stop), token, outcome.logprobs)
        else:
            self._emit(sequence, token, None, outcome.logprobs)

    def _end(
        self, sequence: Sequence, finish: Finish, token: int | None = None, logprobs: bytes = b""
    ) -> None:
        self._emit(sequence, token, finish, logprobs)
        del self._known[sequence.generation]
        if sequence.lane is None:
            self._admission.remove(sequence)
            return
        if finish.reason != "error":
            self._lanes.add_ops(self.reuse.keep_prefix(sequence, sequence.lane))
        self._lanes.vacate(sequence)

    def _emit(
        self, sequence: Sequence, token: int | None, finish: Finish | None, logprobs: bytes
    ) -> None:
        index = sequence.generated - (token is not None)
        self._emissions.append(
            Emission(sequence.generation, index, token, finish, logprobs, sequence.cached)
        )

    # --- figures --------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether a turn would do nothing until someone submits, resumes, or time passes."""
        return self.at_rest and not self._lanes.has_ops

    @property
    def at_rest(self) -> bool:
        """Whether no generation goes on; lanes may still have to be saved."""
        running = any(not s.paused for s in self._lanes)
        startable = bool(self._lanes.free) and bool(self._admission.startable())
        return not (running or startable or self._emissions)

    @property
    def decodes(self) -> bool:
        """Whether a sequence in a lane would take part in a step."""
        return bool(self._lanes.running(chunk=False))

    @property
    def neighbourhood(self) -> Neighbours:
        """What this one is to others on the same processors."""
        classes = [s.qos for s in self._lanes.running(chunk=False)]
        return Neighbours(bool(self._known), min(classes, default=None))

    @property
    def has_transfers(self) -> bool:
        """Whether operations on lanes wait for the next unit of work."""
        return self._lanes.has_ops

    @property
    def lanes_used(self) -> int:
        return len(self._lanes) - self._lanes.free

    @property
    def queued(self) -> int:
        return len(self._admission.waiting)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens since the start that were not computed."""
        return self._admission.cached_tokens

    @property
    def preemptions(self) -> int:
        """Times since the start that a sequence lost its lane."""
        return self._admission.preemptions

    @property
    def kv_live_tokens(self) -> int:
        """Tokens whose keys and values the lanes hold."""
        return sum(sequence.computed for sequence in self._lanes)

    @property
    def kv_host_bytes(self) -> int:
        """Host memory that preempted lanes and prefixes take."""
        return self.reuse.host_bytes

    def prefix_digests(self) -> tuple[bytes, ...]:
        """Hashes of the prefixes in host memory, newest first."""
        return self.reuse.digests()

    def next_deadline(self) -> float | None:
        """When a turn is needed although nothing can run: a wall budget, or a paused lane."""
        times = [s.deadline_s for s in self._known.values()] + [self._admission.look_at]
        return min((at for at in times if at is not None), default=None)

    def check_integrity(self) -> None:
        """For tests, after every event.

        Raises:
            Internal: the sequences contradict each other.
        """
        placed, waiting = list(self._lanes), self._admission.waiting
        sound = (
            sorted(s.arrival for s in placed + waiting)
            == sorted(s.arrival for s in self._known.values())
            and self._lanes.is_sound()
            and self._admission.is_sound()
            and all(s.saved is None for s in placed)
            and all(0 <= s.computed < len(s.tokens) <= self.window for s in self._known.values())
        )
        if not sound:
            raise Internal(f"the scheduler contradicts itself: {placed}, {waiting}")
        self.reuse.check_integrity(waiting)
