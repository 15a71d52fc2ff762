"""Scheduler, model and sampler joined. No sockets: the worker process and the bench drive it.

Nothing here reads the wall clock: `now` is handed in, and the time that a turn took is counted
onto it.
"""

from __future__ import annotations

import time
from dataclasses import replace

from agent.worker.draws import Draws, GrammarSource, Vocabulary
from agent.worker.lane_group import LaneGroup
from agent.worker.model_runner import ModelRunner
from agent.worker.scheduler import Scheduler
from agent.worker.transfers import DEFAULT_HOST_KV_BYTES, Transfers
from agent.worker.work import DecodeStep, Emission, PrefillChunk, Work
from bus.errors import Internal
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
        self._draws = Draws(
            vocab=folder.signature.vocab,
            eos_ids=folder.eos_ids,
            text=TextModel.open(folder.path) if text is None else text,
            grammars=grammars,
        )
        self._group = LaneGroup(
            folder,
            runner.slab,
            window=runner.window,
            longest_chunk=runner.longest_chunk,
            numerics=runner.numerics,
            host_kv_bytes=host_kv_bytes,
            draws=self._draws,
        )
        self._decode_busy_s = 0.0
        self._prefill_busy_s = 0.0

    @property
    def scheduler(self) -> Scheduler:
        """Says who runs next."""
        return self._group.scheduler

    @property
    def transfers(self) -> Transfers:
        """Has the host memory."""
        return self._group.transfers

    @property
    def model(self) -> str:
        """The model's name."""
        return self.runner.folder.name

    def knows(self, generation: GenerationId) -> bool:
        """Whether a generation goes on, or its end was not given out yet."""
        return self.scheduler.knows(generation)

    def submit(self, submit: Submit, now: float) -> None:
        """Take a generation in. One that is known already changes nothing.

        Raises:
            SuperfluidError: what `Scheduler.submit` raises, or a parameter of the sampling can not
                be honoured.
        """
        if not self.scheduler.knows(submit.generation):
            self._group.submit(submit, now)

    def cancel(self, generation: GenerationId) -> None:
        """End a generation; unknown ones are passed over."""
        self._group.cancel(generation)

    def pause(self, generation: GenerationId, now: float = 0.0) -> None:
        """Hold a generation.

        Its lane keeps its keys and values, but goes to others that wait when they are not to be
        had otherwise and host memory has room.

        Args:
            generation: an unknown one is passed over.
            now: seconds; left out, it counts as paused for long.
        """
        self._group.pause(generation, now)

    def resume(self, generation: GenerationId) -> None:
        """Let a held generation go on."""
        self._group.resume(generation)

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
        for generation, error in self._draws.take_ready():
            self._group.take_grammar(generation, error)
        work = self._group.begin(now)
        if work is not None:
            try:
                self._run(work, now)
            except Internal as error:
                log.error("run_failed", error=error)
                self._group.fail(error)
        return self._group.take_emissions()

    def stats(self) -> WorkerStats:
        """Counters since the start, and what holds now."""
        return replace(
            self._group.stats(),
            decode_busy_s=self._decode_busy_s,
            prefill_busy_s=self._prefill_busy_s,
        )

    def prefix_digests(self) -> tuple[bytes, ...]:
        """Hashes of the prefixes in host memory, newest first."""
        return self.scheduler.prefix_digests()

    def check_integrity(self) -> None:
        """For tests, between two turns.

        Raises:
            Internal: the scheduler contradicts itself, or host memory is not what it counts.
        """
        self._group.check_integrity()

    def _run(self, work: Work, now: float) -> None:
        start = time.perf_counter()
        if isinstance(work, PrefillChunk):
            logits = self.runner.prefill_chunk(work.lane, work.ids, work.past)
            outcomes = self._group.draw(work, logits)
            elapsed_s = time.perf_counter() - start
            self._prefill_busy_s += elapsed_s
        elif isinstance(work, DecodeStep):
            logits = self.runner.decode(work.ids, work.lengths)
            outcomes = self._group.draw(work, logits)
            elapsed_s = time.perf_counter() - start
            self._decode_busy_s += elapsed_s
        else:
            outcomes, elapsed_s = [], 0.0
        self._group.commit(outcomes, now=now + elapsed_s, elapsed_s=elapsed_s)
