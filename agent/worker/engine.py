"""Scheduler, model and sampler joined. No sockets: the worker process and the bench drive it.

Nothing here reads the wall clock: `now` is handed in, and the time that a turn took is counted
onto it.
"""

from __future__ import annotations

import logging
import time

from agent.worker.draw_state import DrawState
from agent.worker.model_runner import Logits, ModelRunner
from agent.worker.sampler import sample
from agent.worker.scheduler import DecodeStep, Emission, PrefillChunk, Scheduler
from agent.worker.sequence import Sequence
from bus.errors import Internal
from bus.ids import GenerationId
from bus.messages.worker import Submit, WorkerStats

log = logging.getLogger(__name__)


class Engine:
    """Generates for many sequences over one model. One thread drives it.

    Args:
        runner: the loaded model.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.scheduler = Scheduler(
            lanes=runner.slab.lanes,
            window=runner.window,
            vocab=runner.folder.signature.vocab,
            eos_ids=runner.folder.eos_ids,
        )
        self._states: dict[GenerationId, DrawState] = {}
        self._steps = 0
        self._decode_tokens = 0
        self._prefill_tokens = 0
        self._decode_busy_s = 0.0
        self._prefill_busy_s = 0.0
        self._phase = "idle"

    def submit(self, submit: Submit, now: float) -> None:
        """Take a generation in; raises what `Scheduler.submit` raises."""
        if self.idle:
            self._phase = "prefill"  # What comes next.
        self.scheduler.submit(submit, now)

    def cancel(self, generation: GenerationId) -> None:
        """End a generation; unknown ones are passed over."""
        self.scheduler.cancel(generation)

    def pause(self, generation: GenerationId) -> None:
        """Hold a generation; its lane keeps its keys and values."""
        self.scheduler.pause(generation)

    def resume(self, generation: GenerationId) -> None:
        """Let a held generation go on."""
        self.scheduler.pause(generation, False)

    @property
    def idle(self) -> bool:
        """Whether a turn would do nothing until someone submits, resumes, or time passes."""
        return self.scheduler.idle

    @property
    def step_s(self) -> float:
        """How long a decode step takes of late; 0 is not yet known."""
        return self.scheduler.step_s

    def next_deadline(self) -> float | None:
        """When a turn is needed although the engine is idle."""
        return self.scheduler.next_deadline()

    def turn(self, now: float) -> list[Emission]:
        """Run one unit of work: a prefill chunk or a decode step.

        Returns:
            Tokens and ends since the last turn, in order. A fault of a run ends the generations
            that were in it, never the engine.
        """
        work = self.scheduler.next_work(now)
        if work is None:
            self._phase = "idle"
        else:
            try:
                if isinstance(work, PrefillChunk):
                    self._run_chunk(work, now)
                else:
                    self._run_step(work, now)
            except Internal as error:
                log.error("run_failed error=%s", error)
                self.scheduler.fail(work, error)
        emissions = self.scheduler.take_emissions()
        for emission in emissions:
            if emission.finish is not None:
                self._states.pop(emission.generation, None)
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
            phase="idle" if self.idle else self._phase,
        )

    def _run_chunk(self, chunk: PrefillChunk, now: float) -> None:
        self._phase = "prefill"
        start = time.perf_counter()
        logits = self.runner.prefill_chunk(chunk.lane, chunk.ids, chunk.past)
        token = self._draw(logits, [chunk.sequence])[0] if chunk.draw else None
        elapsed_s = time.perf_counter() - start
        self._steps += 1
        self._prefill_tokens += len(chunk.ids)
        self._prefill_busy_s += elapsed_s
        self.scheduler.commit_chunk(chunk, token, now=now + elapsed_s, elapsed_s=elapsed_s)

    def _run_step(self, step: DecodeStep, now: float) -> None:
        self._phase = "decode"
        start = time.perf_counter()
        for move in step.moves:
            self.runner.copy_lane(move.src, move.dst, move.tokens)
        logits = self.runner.decode(step.ids, step.lengths)
        if len(step.drawing) < len(step.ids):
            logits = logits[step.drawing]
        drawing = [s for row in step.drawing if (s := step.rows[row]) is not None]
        tokens = self._draw(logits, drawing) if drawing else []
        elapsed_s = time.perf_counter() - start
        self._steps += 1
        self._decode_tokens += len(step.rows) - step.rows.count(None)
        self._decode_busy_s += elapsed_s
        self.scheduler.commit_step(step, tokens, now=now + elapsed_s, elapsed_s=elapsed_s)

    def _draw(self, logits: Logits, sequences: list[Sequence]) -> list[int | None]:
        states = [self._state_of(sequence) for sequence in sequences]
        # The token to draw stands right after the known ones: a step's logits are used only then.
        tokens = [
            drawn.token for drawn in sample(logits, states, [len(s.tokens) for s in sequences])
        ]
        for state, token in zip(states, tokens, strict=True):
            if token is not None:
                state.take(token)
        return tokens

    def _state_of(self, sequence: Sequence) -> DrawState:
        state = self._states.get(sequence.generation)
        if state is None:
            state = self._states[sequence.generation] = DrawState(
                sequence.sampling,
                vocab=self.runner.folder.signature.vocab,
                eos_ids=self.runner.folder.eos_ids,
                special_ids=frozenset(),
                prompt=sequence.tokens[: sequence.prompt_tokens],
                generated=sequence.tokens[sequence.prompt_tokens :],
                vocabulary=tuple,
                grammar=None,
            )
        return state
