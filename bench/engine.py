"""Speed of the bare engine: scheduler, model and sampler in one process, greedy.

Each round measures every batch size once, in an order that turns, so that a machine whose speed
drifts is unfair to none; the table has medians over rounds. `session` is the same model called in
a plain loop without scheduler and sampler, in the same round: what the engine could reach at most.

    python -m bench.engine --threads 2 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from bench.models import add_model_option, open_model
from bus.errors import SuperfluidError
from bus.ids import GenerationId, pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Submit

BATCHES = (1, 2, 4, 8)
PROMPT_TOKENS = 512
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class EngineBench:
    """Measures one engine.

    Args:
        runner: with 8 lanes or more.
        steps: decode steps of one measurement.
    """

    def __init__(self, runner: ModelRunner, steps: int) -> None:
        self._runner = runner
        self._steps = steps
        self._generations = 0
        rng = np.random.default_rng(1)
        self._prompts = rng.integers(
            0, runner.folder.signature.vocab, (max(BATCHES), PROMPT_TOKENS)
        )

    def prefill(self) -> float:
        """Prompt tokens/s of one prompt alone, its first token included."""
        engine = Engine(self._runner)
        start = time.perf_counter()
        self._start(engine, 0)
        elapsed_s = time.perf_counter() - start
        return PROMPT_TOKENS / elapsed_s

    def decode(self, batch: int) -> float:
        """Tokens/s of `batch` generations together, all past their prompts."""
        engine = Engine(self._runner)
        # Held until all are prefilled, so that the steps measured have all rows.
        started = [self._start(engine, row) for row in range(batch)]
        for generation in started:
            engine.resume(generation)
        engine.turn(0.0)
        tokens = 0
        start = time.perf_counter()
        for _ in range(self._steps):
            tokens += len(engine.turn(0.0))
        elapsed_s = time.perf_counter() - start
        return self._checked(tokens, batch) / elapsed_s

    def session(self, batch: int) -> float:
        """Tokens/s of the same steps in a plain loop, over what `decode` left in the lanes."""
        feed = [1] * batch
        start = time.perf_counter()
        for step in range(self._steps):
            logits = self._runner.decode(feed, [PROMPT_TOKENS + 2 + step] * batch)
            feed = logits.argmax(axis=1).tolist()
        return batch * self._steps / (time.perf_counter() - start)

    def _start(self, engine: Engine, row: int) -> GenerationId:
        """Submit a prompt, run it to its first token and hold it."""
        self._generations += 1
        generation = GenerationId(self._generations)
        engine.submit(
            Submit(
                generation=generation,
                context=pack_ids(self._prompts[row].tolist()),
                sampling=GREEDY,
                max_new_tokens=self._steps + 2,
                prompt_tokens=PROMPT_TOKENS,
            ),
            0.0,
        )
        while not engine.turn(0.0):
            pass
        engine.pause(generation)
        return generation

    def _checked(self, tokens: int, batch: int) -> int:
        if tokens != batch * self._steps:
            raise SuperfluidError(f"{tokens} tokens in {self._steps} steps of {batch}; not a bench")
        return tokens


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_model_option(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="decode steps of one measurement")
    options = parser.parse_args()
    runner = ModelRunner(
        open_model(options.model_folder), device="cpu", lanes=max(BATCHES), threads=options.threads
    )
    bench = EngineBench(runner, options.steps)
    print_results(measure(bench, options.rounds), options.threads, options.rounds)


def measure(bench: EngineBench, rounds: int) -> dict[str, list[float]]:
    """Tokens/s by what was measured, one figure for each round after a first one for warmth."""
    results: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        kinds = [_prefill(bench), *(_decode(bench, batch) for batch in BATCHES)]
        for kind in kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]:
            for name, rate in kind().items():
                if turn:
                    results.setdefault(name, []).append(rate)
    return results


def _prefill(bench: EngineBench) -> Callable[[], dict[str, float]]:
    return lambda: {"prefill": bench.prefill()}


def _decode(bench: EngineBench, batch: int) -> Callable[[], dict[str, float]]:
    return lambda: {f"b{batch}": bench.decode(batch), f"session{batch}": bench.session(batch)}


def print_results(results: dict[str, list[float]], threads: int, rounds: int) -> None:
    """A table, then one JSON object of the medians."""
    print(f"bare engine, tokens/s, {threads} threads, median of {rounds} rounds (least - most)")
    print(f"{'':>10} {'engine':>8} {'':>17} {'session':>8} {'engine/session':>15}")
    for name in [*(f"b{batch}" for batch in BATCHES), "prefill"]:
        rates = results[name]
        line = f"{name:>10} {median(rates):8.1f} {f'({min(rates):.1f} - {max(rates):.1f})':>17}"
        if session := results.get(name.replace("b", "session")):
            ratio = median(a / b for a, b in zip(rates, session, strict=True))
            line += f" {median(session):8.1f} {ratio:15.3f}"
        print(line)
    names = [*(f"b{batch}" for batch in BATCHES), "prefill"]
    print(json.dumps({name: round(median(results[name]), 1) for name in names}))


if __name__ == "__main__":
    main()
