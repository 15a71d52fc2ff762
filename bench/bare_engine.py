"""A bare engine in a process of its own, driven by lines: the yardstick of bench/fleet.py.

Reads JSON lines `{"prompts": [[ids]...], "max_new": n}`, runs them together through the worker's
engine (scheduler, sampler, model; no sockets), greedily, and answers each with one JSON line:
tokens made, seconds from submit to the last token, and seconds to the first one of each prompt.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from agent.models.folder import ModelFolder
from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from bench.bare_requests import greedy_request
from bus.ids import GenerationId


def run(engine: Engine, prompts: list[list[int]], max_new: int) -> dict[str, Any]:
    """All prompts together, from an idle engine until every answer is complete."""
    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        engine.submit(greedy_request(GenerationId(number + 1), prompt, max_new), start)
    tokens: dict[int, list[int]] = {number + 1: [] for number in range(len(prompts))}
    first_s: dict[int, float] = {}
    while not engine.idle:
        for emission in engine.turn(time.perf_counter()):
            made = tokens[emission.generation]
            if emission.token is not None:
                made.append(emission.token)
                first_s.setdefault(emission.generation, time.perf_counter() - start)
    seconds = time.perf_counter() - start
    return {
        "tokens": list(tokens.values()),
        "seconds": seconds,
        "first_s": [first_s[number] for number in sorted(first_s)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--lanes", type=int, default=8)
    options = parser.parse_args()
    runner = ModelRunner(
        ModelFolder.open(options.folder),
        device="cpu",
        lanes=options.lanes,
        threads=options.threads,
        prepack=True,  # As the workers that it is compared with.
    )
    engine = Engine(runner)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        print(json.dumps(run(engine, work["prompts"], work["max_new"])), flush=True)


if __name__ == "__main__":
    main()
