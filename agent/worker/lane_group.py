"""A slab's lanes with all that belongs to them: who runs next, host memory, and draws.

Its owner asks `begin` for a unit of work, runs it over the slab, and gives the logits to `finish`,
or `fail`. In between, which may be long where other machines have a part in the run, generations
can be submitted at once; a cancel, pause or resume is done when the unit has come to its end.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.models.folder import ModelFolder
from agent.worker.chunk_grid import FREE_HEAD_DIM
from agent.worker.draws import Draws
from agent.worker.host_way import Logits
from agent.worker.kv_cache import KvSlab
from agent.worker.prefix_cache import prefix_seed
from agent.worker.scheduler import ALONE, Neighbours, Scheduler
from agent.worker.transfers import Transfers
from agent.worker.turns import LONE_CHUNK_TOKENS
from agent.worker.work import DecodeStep, Emission, Outcome, PrefillChunk, Work
from bus.errors import Internal, SuperfluidError
from bus.ids import GenerationId, NumericsId
from bus.messages.worker import Submit, WorkerStats


class LaneGroup:
    """Owns a scheduler and the host memory beside a slab. Driven by an engine.

    Invariant: at most one unit of work is under way.

    Args:
        folder: of the model.
        slab: the lanes.
        window: tokens that a lane may hold.
        longest_chunk: most tokens that a chunk may have.
        numerics: of what computes.
        host_kv_bytes: host memory for prefixes and preempted lanes; 0 is neither.
        draws: states of generations, of this group's among others.
        mirrored: whether others do the same operations, in the order of the runs, so that none
            may fail here alone.
    """

    def __init__(
        self,
        folder: ModelFolder,
        slab: KvSlab,
        *,
        window: int,
        longest_chunk: int,
        numerics: NumericsId,
        host_kv_bytes: int,
        draws: Draws,
        mirrored: bool = False,
    ) -> None:
        self.scheduler = Scheduler(
            lanes=slab.lanes,
            window=window,
            vocab=folder.signature.vocab,
            token_bytes=slab.layout.token_bytes,
            host_kv_bytes=host_kv_bytes,
            prefix_seed=lambda salt: prefix_seed(model=folder.digest, numerics=numerics, salt=salt),
            chunk_grid=folder.signature.head_dim > FREE_HEAD_DIM,
            long_chunks=longest_chunk >= LONE_CHUNK_TOKENS,
        )
        self.transfers = Transfers(slab, host_kv_bytes)
        self._draws = draws
        self._mirrored = mirrored
        self._steps = 0
        self._decode_tokens = 0
        self._prefill_tokens = 0
        self._phase = "idle"
        #: What is under way, and what is to be done behind it.
        self._work: Work | None = None
        self._later: list[Callable[[], None]] = []

    # --- what the agent says --------------------------------------------------------------

    def submit(self, submit: Submit, now: float) -> None:
        """Take a generation in that is not known.

        Raises:
            SuperfluidError: what `Scheduler.submit` raises, or a parameter of the sampling can not
                be honoured.
        """
        if self.scheduler.idle:
            self._phase = "prefill"  # What comes next.
        self.scheduler.check(submit)
        self._draws.start(submit)
        try:
            self.scheduler.submit(submit, now, held=submit.sampling.constraint is not None)
        except SuperfluidError:
            self._draws.drop(submit.generation)
            raise

    def cancel(self, generation: GenerationId) -> None:
        """End a generation; unknown ones are passed over."""
        self._when_done(lambda: self.scheduler.cancel(generation))

    def pause(self, generation: GenerationId, now: float) -> None:
        """Hold a generation since `now`; an unknown one is passed over."""

        def pause() -> None:
            self.scheduler.pause(generation, now)
            if self.scheduler.waits(generation) and self._draws.pause(generation):
                self.scheduler.hold(generation)

        self._when_done(pause)

    def resume(self, generation: GenerationId) -> None:
        """Let a held generation go on."""

        def resume() -> None:
            self._draws.resume(generation)
            self.scheduler.resume(generation)

        self._when_done(resume)

    def take_grammar(self, generation: GenerationId, error: SuperfluidError | None) -> None:
        """A generation's grammar is built, or can not be; an unknown one is passed over."""
        if error is None:
            self.scheduler.release(generation)
        else:
            self.scheduler.refuse(generation, error)

    def _when_done(self, act: Callable[[], None]) -> None:
        if self._work is None:
            act()
        else:
            self._later.append(act)

    # --- a unit of work -------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a unit of work is under way that others have to wait for."""
        return self._work is not None

    def begin(self, now: float, neighbours: Neighbours = ALONE) -> Work | None:
        """The next unit of work, its run yet to be; None is nothing.

        Its operations are done, unless others do them too: then `transfer` does them.

        Args:
            now: seconds.
            neighbours: who runs on the same processors beside this group.
        """
        work = self.scheduler.next_work(now, neighbours)
        if work is None:
            self._phase = "idle"
            return None
        if work.ops and not self._mirrored and not self._transferred(work):
            return None
        if isinstance(work, PrefillChunk):
            self._phase = "prefill"
            self._draws.begin(work.sequence.generation)
        elif isinstance(work, DecodeStep):
            self._phase = "decode"
            for sequence in work.rows:
                if sequence is not None:
                    self._draws.begin(sequence.generation)
        self._work = work
        return work

    def transfer(self, work: Work) -> None:
        """Copy what is to be copied before the run of a unit that others run too.

        Raises:
            Internal: something could not be copied.
        """
        lost = self.transfers.run(work.ops) if work.ops else []
        if lost:
            raise Internal(f"keys and values could not be copied: {lost[0]}")

    def _transferred(self, work: Work) -> bool:
        """Copy what is to be copied before the run; False when the run can not be done so."""
        lost = self.transfers.run(work.ops)
        for op in lost:
            self.scheduler.lose(op)
        return not lost

    def draw(self, work: Work, logits: Logits) -> list[Outcome]:
        """What follows from the logits of a unit of work: `[1, vocab]`, or of each row.

        Raises:
            Internal: nothing could be drawn.
        """
        if isinstance(work, PrefillChunk):
            return self._draws.draw(logits, [work.sequence]) if work.draw else []
        if not isinstance(work, DecodeStep):
            return []
        if len(work.drawing) < len(work.ids):
            logits = logits[work.drawing]
        drawing = [s for row in work.drawing if (s := work.rows[row]) is not None]
        return self._draws.draw(logits, drawing) if drawing else []

    def commit(self, outcomes: list[Outcome], *, now: float, elapsed_s: float) -> None:
        """The unit under way was run and drawn from.

        Args:
            outcomes: of `draw`.
            now: when it ended.
            elapsed_s: how long it took.
        """
        work, self._work = self._work, None
        if isinstance(work, PrefillChunk):
            self._steps += 1
            self._prefill_tokens += len(work.ids)
            outcome = outcomes[0] if work.draw else None
            self.scheduler.commit_chunk(work, outcome, now=now, elapsed_s=elapsed_s)
        elif isinstance(work, DecodeStep):
            self._steps += 1
            self._decode_tokens += len(work.rows) - work.rows.count(None)
            self.scheduler.commit_step(work, outcomes, now=now, elapsed_s=elapsed_s)
        if self._later:
            self._do_later()

    def advance(self) -> None:
        """Count the chunk under way as done, which nothing is drawn from; others may follow it."""
        work, self._work = self._work, None
        if isinstance(work, PrefillChunk):
            self.scheduler.advance_chunk(work)

    def count_chunk(self, chunk: PrefillChunk, elapsed_s: float) -> None:
        """A chunk that was counted as done (`advance`) was run, and took so long."""
        self._steps += 1
        self._prefill_tokens += len(chunk.ids)
        self.scheduler.pacer.ran_chunk(len(chunk.ids), elapsed_s)

    def fail(self, error: Internal) -> None:
        """The unit under way could not be run: its generations end, and no other does."""
        work, self._work = self._work, None
        if work is not None:
            self.scheduler.fail(work, error)
        self._do_later()

    def _do_later(self) -> None:
        later, self._later = self._later, []
        for act in later:
            act()

    def take_emissions(self) -> list[Emission]:
        """Tokens and ends since the last call, in order."""
        emissions = self.scheduler.take_emissions()
        for emission in emissions:
            if emission.finish is not None:
                self._draws.drop(emission.generation)
        return emissions

    # --- figures --------------------------------------------------------------------------

    def stats(self) -> WorkerStats:
        """Counters since the start but for times, and what holds now."""
        scheduler = self.scheduler
        return WorkerStats(
            steps=self._steps,
            decode_tokens=self._decode_tokens,
            prefill_tokens=self._prefill_tokens,
            lanes_used=scheduler.lanes_used,
            queued=scheduler.queued,
            kv_live_tokens=scheduler.kv_live_tokens,
            phase="idle" if scheduler.at_rest else self._phase,
            cached_tokens=scheduler.cached_tokens,
            preemptions=scheduler.preemptions,
            kv_host_bytes=scheduler.kv_host_bytes,
        )

    def check_integrity(self) -> None:
        """For tests, when no operations are under way.

        Raises:
            Internal: the scheduler contradicts itself, or host memory is not what it counts.
        """
        self.scheduler.check_integrity()
        counted, held = self.scheduler.kv_host_bytes, self.transfers.host.nbytes
        if not self.scheduler.has_transfers and counted != held:
            raise Internal(f"host memory has {held} bytes, and the scheduler counts {counted}")
