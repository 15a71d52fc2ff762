"""Our engine as a process of its own, driven by lines: scheduler, model and sampler, no sockets.

python -m bench.engine_side --folder FOLDER --threads 2
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent.models.folder import ModelFolder
from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from bench.bare_requests import greedy_request
from bench.engine_duties import interactive, shared_prefix
from bench.lines import Handler, serve
from bench.prompts import prompts
from bus.errors import SuperfluidError
from bus.ids import GenerationId


class EngineBench:
    """Measures one engine, which goes on from one measurement to the next.

    Args:
        runner: with as many lanes as the largest batch.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._engine = Engine(runner)
        self._generations = 0

    def prefill(self, tokens: int, seed: int) -> dict[str, Any]:
        """Prompt tokens/s of one prompt alone, its first token included."""
        start = time.perf_counter()
        started = self._start(1, tokens, 1, seed)
        elapsed_s = time.perf_counter() - start
        self._end(started)
        return {"tokens_s": tokens / elapsed_s}

    def decode(self, batch: int, context: int, steps: int, seed: int) -> dict[str, Any]:
        """Tokens/s of `batch` generations together, all past their prompts of `context` tokens.

        Then the same of a plain loop over what they left in the lanes, without scheduler and
        sampler, and the share of the engine's time that was not in ONNX Runtime.
        """
        started = self._start(batch, context, steps + 2, seed)
        for generation in started:
            self._engine.resume(generation)
        self._engine.turn(time.perf_counter())
        run_s, tokens = self._runner.run_s, 0
        start = time.perf_counter()
        for _ in range(steps):
            now = time.perf_counter()
            tokens += sum(emission.token is not None for emission in self._engine.turn(now))
        elapsed_s = time.perf_counter() - start
        run_s = self._runner.run_s - run_s
        if tokens != batch * steps:
            raise SuperfluidError(f"{tokens} tokens in {steps} steps of {batch}; not a bench")
        loop_s = self._loop(batch, context, steps)
        self._end(started)
        return {
            "tokens_s": tokens / elapsed_s,
            "loop_tokens_s": tokens / loop_s,
            "outside": 1 - run_s / elapsed_s,
        }

    def greedy(self, prompt: list[int], count: int) -> dict[str, Any]:
        """The ids that follow a prompt."""
        ids: list[int] = []
        generation = self._submit(prompt, count)
        while not self._engine.idle:
            ids.extend(
                emission.token
                for emission in self._engine.turn(time.perf_counter())
                if emission.generation == generation and emission.token is not None
            )
        return {"ids": ids}

    def _loop(self, batch: int, context: int, steps: int) -> float:
        feed = [1] * batch
        start = time.perf_counter()
        for step in range(steps):
            logits = self._runner.decode(feed, [context + 2 + step] * batch)
            feed = logits.argmax(axis=1).tolist()
        return time.perf_counter() - start

    def _start(self, batch: int, context: int, most: int, seed: int) -> list[GenerationId]:
        """Run prompts to their first tokens, one after the other, and hold each there."""
        rows = prompts(self._runner.folder.signature.vocab, batch, context, seed)
        started = []
        for row in rows:
            started.append(self._submit(row.tolist(), most))
            while not self._engine.turn(time.perf_counter()):
                pass
            self._engine.pause(started[-1])
        return started

    def _submit(self, prompt: list[int], most: int) -> GenerationId:
        self._generations += 1
        generation = GenerationId(self._generations)
        self._engine.submit(greedy_request(generation, prompt, most), time.perf_counter())
        return generation

    def _end(self, started: Iterable[GenerationId]) -> None:
        for generation in started:
            self._engine.cancel(generation)
        while not self._engine.idle:
            self._engine.turn(time.perf_counter())


def main() -> None:
    """Load, then answer lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--lanes", type=int, default=8)
    options = parser.parse_args()
    start = time.perf_counter()
    runner = ModelRunner(
        ModelFolder.open(options.folder),
        device="cpu",
        lanes=options.lanes,
        threads=options.threads,
        prepack=True,
    )
    runner.self_test()
    load_s = time.perf_counter() - start
    bench = EngineBench(runner)
    handlers: dict[str, Handler] = {
        "decode": bench.decode,
        "prefill": bench.prefill,
        "greedy": bench.greedy,
        "interactive": lambda **options: interactive(runner, **options),
        "shared_prefix": lambda **options: shared_prefix(runner, **options),
    }
    serve({"load_s": load_s, "numerics": str(runner.numerics)}, handlers)


if __name__ == "__main__":
    main()
