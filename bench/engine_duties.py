"""What the engine owes its callers beside speed: quick first tokens, and no prefix read twice."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from bench.bare_requests import greedy_request
from bench.prompts import prompts
from bus.ids import GenerationId

BACKGROUND_LANES = 8


class _Duty:
    """An engine of its own over the runner, and how long its turns took."""

    def __init__(self, runner: ModelRunner) -> None:
        self.engine = Engine(runner)
        self._vocab = runner.folder.signature.vocab
        self._generations = 0
        self.turns_s: list[float] = []

    def submit(self, prompt: list[int], most: int, qos: str = "interactive") -> GenerationId:
        self._generations += 1
        generation = GenerationId(self._generations)
        self.engine.submit(greedy_request(generation, prompt, most, qos), time.perf_counter())
        return generation

    def turn(self) -> set[GenerationId]:
        """One turn; gives who had a token or ended."""
        start = time.perf_counter()
        emissions = self.engine.turn(start)
        self.turns_s.append(time.perf_counter() - start)
        return {emission.generation for emission in emissions}

    def first_token_s(self, prompt: list[int], most: int) -> float:
        """Seconds from the submit of an interactive request to its first token."""
        start = time.perf_counter()
        generation = self.submit(prompt, most)
        while generation not in self.turn():
            pass
        elapsed_s = time.perf_counter() - start
        self.engine.cancel(generation)
        return elapsed_s

    def prompt(self, tokens: int, seed: int) -> list[int]:
        ids: list[int] = prompts(self._vocab, 1, tokens, seed)[0].tolist()
        return ids

    def finish(self) -> None:
        """Cancel everything."""
        for number in range(1, self._generations + 1):
            self.engine.cancel(GenerationId(number))
        while not self.engine.idle:
            self.turn()


def interactive(
    runner: ModelRunner, tokens: int, background: int, times: int, seed: int
) -> dict[str, Any]:
    """First-token seconds of an interactive request, alone and behind background prompts.

    Args:
        runner: the loaded model.
        tokens: of its prompt.
        background: tokens of each of the eight background prompts.
        times: requests alone, and while the background's prompts are read, and while all lanes
            decode.
        seed: of the prompts.

    Returns:
        Medians `idle_s`, `reading_s` and `decoding_s`; `turn_s`, the nine-tenths quantile of
        turns beside them; `snapshot_s`, of saving one lane.
    """
    duty = _Duty(runner)
    fresh = iter(range(seed * 1000, seed * 1000 + 999))
    idle = []
    for _ in range(times + 1):
        idle.append(duty.first_token_s(duty.prompt(tokens, next(fresh)), 4))
        duty.finish()
    reading: list[float] = []
    decoding: list[float] = []
    duty.turns_s.clear()
    while len(reading) < times:
        owed = {
            duty.submit(duty.prompt(background, next(fresh)), 500, "background")
            for _ in range(BACKGROUND_LANES)
        }
        for _ in range(3):
            owed -= duty.turn()
        while len(reading) < times and len(owed) > 1:
            reading.append(duty.first_token_s(duty.prompt(tokens, next(fresh)), 4))
            for _ in range(20):
                owed -= duty.turn()
        if len(decoding) < times:
            while owed:
                owed -= duty.turn()
            while len(decoding) < times:
                decoding.append(duty.first_token_s(duty.prompt(tokens, next(fresh)), 4))
                for _ in range(5):
                    duty.turn()
        duty.finish()
    turns = sorted(duty.turns_s)
    return {
        "idle_s": median(idle[1:]),
        "reading_s": median(reading),
        "decoding_s": median(decoding),
        "turn_s": turns[len(turns) * 9 // 10],
        "snapshot_s": _snapshot_s(runner, background),
    }


def _snapshot_s(runner: ModelRunner, tokens: int) -> float:
    """Seconds that copying a lane's first tokens takes, out and back."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        saved = runner.slab.read_lane(0, tokens)
        runner.slab.write_lane(1, saved, tokens)
        times.append(time.perf_counter() - start)
    return median(times)


def shared_prefix(
    runner: ModelRunner, prefix: int, behind: int, requests: int, seed: int
) -> dict[str, Any]:
    """How often a prefix is read that many requests share and that all come at once.

    Args:
        runner: the loaded model.
        prefix: tokens that all prompts begin with.
        behind: tokens of each prompt's own.
        requests: how many.
        seed: of the prompts.

    Returns:
        `prefills`: prompt tokens read, less each prompt's own, over the prefix's. `seconds` until
        each has its first token.
    """
    duty = _Duty(runner)
    shared = duty.prompt(prefix, seed)
    start = time.perf_counter()
    for number in range(requests):
        duty.submit([*shared, *duty.prompt(behind, seed + 1 + number)], 1)
    while not duty.engine.idle:
        duty.turn()
    seconds = time.perf_counter() - start
    read = duty.engine.stats().prefill_tokens - requests * behind
    return {"prefills": read / prefix, "seconds": seconds}
