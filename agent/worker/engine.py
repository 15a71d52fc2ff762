"""Scheduler, model and sampler joined. No sockets: the worker process and the bench drive it.

Nothing here reads the wall clock: `now` is handed in, and the time that a turn took is counted
onto it.
"""

from __future__ import annotations

import time

from agent.worker.chunk_grid import FREE_HEAD_DIM
from agent.worker.draws import Draws, GrammarSource, Vocabulary
from agent.worker.model_runner import ModelRunner
from agent.worker.prefix_cache import prefix_seed
from agent.worker.scheduler import Scheduler
from agent.worker.transfers import DEFAULT_HOST_KV_BYTES, Transfers
from agent.worker.turns import LONE_CHUNK_TOKENS
from agent.worker.work import DecodeStep, Emission, PrefillChunk, Work
from bus.errors import Internal, SuperfluidError
from bus.ids import GenerationId
from bus.log import EventLog
from bus.messages.worker import Submit, WorkerStats
from bus.text.tokenizer import TextModel

log = EventLog(__name__)


class Engine:
    """Generates for many sequences over one model. One thread drives it.

    Args:
        runner: the loaded model.
        host_kv_bytes: host memory for prefixes and preempted lanes; 0 is neither.
        text: the model's tokenizer; None opens the folder's.
        grammars: None where constraints can not be honoured.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        host_kv_bytes: int = DEFAULT_HOST_KV_BYTES,
        text: Vocabulary | None = None,
        grammars: GrammarSource | None = None,
    ) -> None:
        self.runner = runner
        folder = runner.folder
        self.scheduler = Scheduler(
            lanes=runner.slab.lanes,
            window=runner.window,
            vocab=folder.signature.vocab,
            token_bytes=runner.slab.layout.token_bytes,
            host_kv_bytes=host_kv_bytes,
            prefix_seed=lambda salt: prefix_seed(
                model=folder.digest, numerics=runner.numerics, salt=salt
            ),
            chunk_grid=folder.signature.head_dim > FREE_HEAD_DIM,
            long_chunks=runner.longest_chunk >= LONE_CHUNK_TOKENS,
        )
        self.transfers = Transfers(runner.slab, host_kv_bytes)
        self._draws = Draws(
            vocab=folder.signature.vocab,
            eos_ids=folder.eos_ids,
            text=TextModel.open(folder.path) if text is None else text,
            grammars=grammars,
        )
        self._steps = 0
        self._decode_tokens = 0
        self._prefill_tokens = 0
        self._decode_busy_s = 0.0
        self._prefill_busy_s = 0.0
        self._phase = "idle"

    def knows(self, generation: GenerationId) -> bool:
        """Whether a generation goes on, or its end was not given out yet."""
        return self.scheduler.knows(generation)

    def submit(self, submit: Submit, now: float) -> None:
        """Take a generation in. One that is known already changes nothing.

        Raises:
            SuperfluidError: what `Scheduler.submit` raises, or a parameter of the sampling can not
                be honoured.
        """
        if self.scheduler.knows(submit.generation):
            return
        if self.idle:
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
        self.scheduler.cancel(generation)

    def pause(self, generation: GenerationId, now: float = 0.0) -> None:
        """Hold a generation.

        Its lane keeps its keys and values, but goes to others that wait when they are not to be
        had otherwise and host memory has room.

        Args:
            generation: an unknown one is passed over.
            now: seconds; left out, it counts as paused for long.
        """
        self.scheduler.pause(generation, now)
        if self.scheduler.waits(generation) and self._draws.pause(generation):
            self.scheduler.hold(generation)

    def resume(self, generation: GenerationId) -> None:
        """Let a held generation go on."""
        self._draws.resume(generation)
        self.scheduler.resume(generation)

    @property
    def idle(self) -> bool:
        """Whether a turn would do nothing until someone submits, resumes, or time passes.

        Grammars that are being built (`building`) are not counted.
        """
        return self.scheduler.idle

    @property
    def building(self) -> bool:
        """Whether a turn may find a grammar built, and a generation start."""
        return self._draws.building

    @property
    def step_s(self) -> float:
        """How long a decode step takes of late; 0 is not yet known."""
        return self.scheduler.pacer.step_s

    def next_deadline(self) -> float | None:
        """When a turn is needed although the engine is idle."""
        return self.scheduler.next_deadline()

    def turn(self, now: float) -> list[Emission]:
        """Run one unit of work: a prefill chunk or a decode step.

        Returns:
            Tokens and ends since the last turn, in order. A fault of a run ends the generations
            that were in it, never the engine.
        """
        self._take_grammars()
        work = self.scheduler.next_work(now)
        if work is None:
            self._phase = "idle"
        elif self._transferred(work):
            try:
                self._run(work, now)
            except Internal as error:
                log.error("run_failed", error=error)
                self.scheduler.fail(work, error)
        emissions = self.scheduler.take_emissions()
        for emission in emissions:
            if emission.finish is not None:
                self._draws.drop(emission.generation)
        return emissions

    def stats(self) -> WorkerStats:
        """Counters since the start, and what holds now."""
        return WorkerStats(
            steps=self._steps,
            decode_tokens=self._decode_tokens,
            prefill_tokens=self._prefill_tokens,
            decode_busy_s=self._decode_busy_s,
            prefill_busy_s=self._prefill_busy_s,
            lanes_used=self.scheduler.lanes_used,
            queued=self.scheduler.queued,
            kv_live_tokens=self.scheduler.kv_live_tokens,
            phase="idle" if self.scheduler.at_rest else self._phase,
            cached_tokens=self.scheduler.cached_tokens,
            preemptions=self.scheduler.preemptions,
            kv_host_bytes=self.scheduler.kv_host_bytes,
        )

    def prefix_digests(self) -> tuple[bytes, ...]:
        """Hashes of the prefixes in host memory, newest first."""
        return self.scheduler.prefix_digests()

    def check_integrity(self) -> None:
        """For tests, between two turns.

        Raises:
            Internal: the scheduler contradicts itself, or host memory is not what it counts.
        """
        self.scheduler.check_integrity()
        counted, held = self.scheduler.kv_host_bytes, self.transfers.host.nbytes
        if not self.scheduler.has_transfers and counted != held:
            raise Internal(f"host memory has {held} bytes, and the scheduler counts {counted}")

    def _take_grammars(self) -> None:
        for generation, error in self._draws.take_ready():
            if error is None:
                self.scheduler.release(generation)
            else:
                self.scheduler.refuse(generation, error)

    def _transferred(self, work: Work) -> bool:
        """Copy what is to be copied before the run; False when the run can not be done so."""
        lost = self.transfers.run(work.ops) if work.ops else []
        for op in lost:
            self.scheduler.lose(op)
        return not lost

    def _run(self, work: Work, now: float) -> None:
        if isinstance(work, PrefillChunk):
            self._run_chunk(work, now)
        elif isinstance(work, DecodeStep):
            self._run_step(work, now)

    def _run_chunk(self, chunk: PrefillChunk, now: float) -> None:
        self._phase = "prefill"
        self._draws.begin(chunk.sequence.generation)
        start = time.perf_counter()
        logits = self.runner.prefill_chunk(chunk.lane, chunk.ids, chunk.past)
        outcome = self._draws.draw(logits, [chunk.sequence])[0] if chunk.draw else None
        elapsed_s = time.perf_counter() - start
        self._steps += 1
        self._prefill_tokens += len(chunk.ids)
        self._prefill_busy_s += elapsed_s
        self.scheduler.commit_chunk(chunk, outcome, now=now + elapsed_s, elapsed_s=elapsed_s)

    def _run_step(self, step: DecodeStep, now: float) -> None:
        self._phase = "decode"
        for sequence in step.rows:
            if sequence is not None:
                self._draws.begin(sequence.generation)
        start = time.perf_counter()
        logits = self.runner.decode(step.ids, step.lengths)
        if len(step.drawing) < len(step.ids):
            logits = logits[step.drawing]
        drawing = [s for row in step.drawing if (s := step.rows[row]) is not None]
        outcomes = self._draws.draw(logits, drawing) if drawing else []
        elapsed_s = time.perf_counter() - start
        self._steps += 1
        self._decode_tokens += len(step.rows) - step.rows.count(None)
        self._decode_busy_s += elapsed_s
        self.scheduler.commit_step(step, outcomes, now=now + elapsed_s, elapsed_s=elapsed_s)
