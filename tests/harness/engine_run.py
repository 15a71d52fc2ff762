"""Generations through an `Engine`, turn by turn: what each gave, by its number."""

from __future__ import annotations

import numpy as np

from agent.worker.draws import GrammarSource, Vocabulary
from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from bus.ids import GenerationId, pack_ids
from bus.messages.parts import Finish, Segment
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Submit

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Ids of the toy's vocabulary: printable ASCII."""
    ids: list[int] = np.random.default_rng([seed, length]).integers(32, 127, length).tolist()
    return ids


def submit(
    generation: int,
    context: list[int],
    count: int,
    rule: SamplingParams = GREEDY,
    *,
    qos: int = 0,
    exact: bool = False,
    segments: tuple[Segment, ...] = (),
    wall_ms: int = 0,
) -> Submit:
    """A request; its prompt is the whole context."""
    return Submit(
        generation=GenerationId(generation),
        context=pack_ids(context),
        sampling=rule,
        max_new_tokens=count,
        prompt_tokens=len(context),
        qos=qos,
        exact=exact,
        segments=segments,
        wall_ms=wall_ms,
    )


class EngineRun:
    """Drives an engine, and keeps what each generation gave."""

    def __init__(
        self,
        runner: ModelRunner,
        *,
        host_kv_bytes: int = 64 << 20,
        text: Vocabulary | None = None,
        grammars: GrammarSource | None = None,
    ) -> None:
        self.engine = Engine(runner, host_kv_bytes=host_kv_bytes, text=text, grammars=grammars)
        self.ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, bytes] = {}
        self.ends: dict[int, Finish] = {}
        self.now = 0.0

    def submit(self, *messages: Submit) -> None:
        for message in messages:
            self.ids[int(message.generation)] = []
            self.logprobs[int(message.generation)] = b""
            self.engine.submit(message, self.now)

    def turn(self) -> None:
        self.now += 0.05
        for emission in self.engine.turn(self.now):
            generation = int(emission.generation)
            if emission.token is not None:
                assert emission.index == len(self.ids[generation])
                self.ids[generation].append(emission.token)
                self.logprobs[generation] += emission.logprobs
            if emission.finish is not None:
                self.ends[generation] = emission.finish
        self.engine.check_integrity()

    def finish(self) -> None:
        """Turn until nothing is left."""
        while not self.engine.idle:
            self.turn()


def alone(runner: ModelRunner, message: Submit) -> tuple[list[int], bytes]:
    """Ids and log-probabilities of a request on a worker that keeps nothing."""
    run = EngineRun(runner, host_kv_bytes=0)
    run.submit(message)
    run.finish()
    generation = int(message.generation)
    return run.ids[generation], run.logprobs[generation]
