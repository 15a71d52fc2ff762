"""Speed of the bare engine beside the best local runtimes, in one run on the same model file.

Every runtime is a process of its own with two threads. A round measures each kind of work once
with each of them; what is measured first turns from round to round, so that a machine whose speed
drifts is unfair to none. Ratios are medians over rounds of ours over the best other of the round;
`/loop` is ours over the same model called in a plain loop, without scheduler and sampler.

    python -m bench.engine --peers --rounds 15 --sustain 10
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from agent.models.export import export_genai
from agent.models.folder import ModelFolder
from agent.models.pull import default_cache, pull
from agent.worker_environment import worker_environment
from bench.build_peers import GENAI, LLAMACPP, peer_python, peer_record
from bench.engine_figures import (
    LOOP,
    OURS,
    interactive_ratio,
    rate_table,
    summary,
    sustained_ratio,
)
from bench.models import add_model_option, open_model
from bench.process_memory import ProcessMemory
from bench.program import Program

BATCHES = (1, 2, 4, 8)
PROMPT_TOKENS = 512
#: Tokens before the steps that are measured.
CONTEXT_TOKENS = 256
INTERACTIVE = {"tokens": 100, "background": 1500, "times": 7, "seed": 1}
SHARED = {"prefix": 1000, "behind": 24, "requests": 32, "seed": 9}
SUSTAIN_STEPS = 100
SECONDS_A_MINUTE = 60.0

Duties = dict[str, float | None]
#: What the last line tells beside rates and their ratios.
DUTIES = ("overhead_b8", "interactive_ttft_ratio", "shared_prefix_prefills", "sustained_ratio")


class Sides:
    """The processes of a run, each asked one thing at a time."""

    def __init__(self, folder: ModelFolder, threads: int, steps: int, peers: bool) -> None:
        self.folder = folder
        self.threads = threads
        self.steps = steps
        self.names = [OURS, *([GENAI, LLAMACPP] if peers else [])]
        self._programs: dict[str, Program] = {}

    @contextmanager
    def running(self, *names: str) -> Iterator[dict[str, float]]:
        """Start processes and end them; gives the seconds that each took to load."""
        with ExitStack() as stack:
            loads = {}
            for name in names or self.names:
                self._programs[name] = stack.enter_context(self._start(name))
                loads[name] = float(self._programs[name].answer()["load_s"])
            yield loads
        self._programs.clear()

    def ask(self, name: str, do: str, **options: Any) -> dict[str, Any]:
        """What a process answers."""
        program = self._programs[name]
        program.ask(json.dumps({"do": do, **options}))
        return program.answer()

    def memory(self, name: str) -> ProcessMemory:
        """What a process takes now."""
        return ProcessMemory.of(self._programs[name].pid)

    def measure(self, name: str, kind: str, seed: int) -> dict[str, float]:
        """Tokens/s of one kind of work with one runtime; with ours also what is beside it."""
        vocab = self.folder.signature.vocab
        options: dict[str, Any] = {"tokens": PROMPT_TOKENS}
        if kind != "prefill":
            options = {"batch": int(kind[1:]), "context": CONTEXT_TOKENS, "steps": self.steps}
        if name == GENAI or (name == LLAMACPP and kind == "prefill"):
            options["vocab"] = vocab
        if name != LLAMACPP or kind == "prefill":
            options["seed"] = seed
        return self.ask(name, "prefill" if kind == "prefill" else "decode", **options)

    def _start(self, name: str) -> Program:
        threads = ("--threads", str(self.threads))
        if name == GENAI:
            folder = genai_folder(self.folder)
            arguments = ("--folder", str(folder), *threads)
            return Program("bench.genai_side", *arguments, python=peer_python(GENAI))
        if name == LLAMACPP:
            arguments = ("--file", str(gguf_file()), *threads)
            return Program("bench.llamacpp_side", *arguments, python=peer_python(LLAMACPP))
        # As an agent starts a worker.
        env = worker_environment(os.environ)
        return Program("bench.engine_side", "--folder", str(self.folder.path), *threads, env=env)


def gguf_file() -> Path:
    """The file that the default model was made of."""
    return pull("smollm2", default_cache(), lambda step, done, total: None)


def genai_folder(folder: ModelFolder) -> Path:
    """The model as onnxruntime-genai loads it, made anew where the model is another."""
    target = folder.path.with_name(f"{folder.path.name}-genai-{folder.digest[:12]}")
    return target if target.exists() else export_genai(folder, target)


def main() -> int:
    """Measure and print."""
    options = _parser().parse_args()
    missing = [n for n in (GENAI, LLAMACPP) if options.peers and peer_record(n) is None]
    if missing:
        print(f"error: {', '.join(missing)} not built; run make bench-peers", file=sys.stderr)
        return 1
    folder = open_model(options.model_folder)
    sides = Sides(folder, options.threads, options.steps, options.peers)
    for name in sides.names[1:]:
        print(f"{name}: {json.dumps(peer_record(name))}")
    duties: Duties = dict.fromkeys(DUTIES)
    report_memory(sides)
    starts = min(options.starts, options.rounds)
    rates, overheads = measure(sides, options.rounds, starts)
    rounds = f"medians of {options.rounds} rounds over {starts} starts"
    print(f"{options.threads} threads, {rounds}, greedy")
    print("\n".join(rate_table(rates)))
    duties["overhead_b8"] = median(overheads)
    print(f"outside ONNX Runtime at 8 lanes: {median(overheads):.2%} of a step")
    with sides.running(OURS):
        if options.duties:
            duties["interactive_ttft_ratio"] = report_interactive(sides)
            duties["shared_prefix_prefills"] = report_shared_prefix(sides)
        if options.sustain:
            duties["sustained_ratio"] = report_sustained(sides, options.sustain)
    print(json.dumps(summary(rates, duties)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_model_option(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3, help="of all processes [default: 3]")
    parser.add_argument("--steps", type=int, default=40, help="decode steps of one measurement")
    parser.add_argument("--peers", action="store_true", help="beside the runtimes in build/peers")
    parser.add_argument("--sustain", type=float, default=0.0, help="minutes; 0 skips it")
    parser.add_argument(
        "--no-duties",
        dest="duties",
        action="store_false",
        help="skip the interactive request and the shared prefix",
    )
    return parser


KINDS = (*(f"b{batch}" for batch in BATCHES), "prefill")
Rates = dict[str, dict[str, list[float]]]


def measure(sides: Sides, rounds: int, starts: int) -> tuple[Rates, list[float]]:
    """Rates by kind and side, one for each round; and overheads.

    Two processes of one program differ by some per cent for as long as they live, by where their
    memory came to lie; so all are started several times, each first as often.
    """
    rates: Rates = {kind: {} for kind in KINDS}
    overheads: list[float] = []
    done = 0
    for start in range(starts):
        names = sides.names[start % len(sides.names) :] + sides.names[: start % len(sides.names)]
        with sides.running(*names):
            for name in sides.names[1:]:
                print(f"{name}, the fastest of its variants: {json.dumps(_choose(sides, name))}")
            _round(sides, done, {kind: {} for kind in KINDS})  # For warmth.
            for _ in range((rounds + start) // starts):
                done += 1
                overheads += _round(sides, done, rates)
                print(f"round {done} of {rounds}", file=sys.stderr, flush=True)
    return rates, overheads


def _round(sides: Sides, turn: int, rates: Rates) -> list[float]:
    """Measure every kind with every side once; gives the overheads."""
    overheads = []
    for place in range(len(KINDS)):
        kind = KINDS[(place + turn) % len(KINDS)]
        for number in range(len(sides.names)):
            name = sides.names[(number + turn + place) % len(sides.names)]
            found = sides.measure(name, kind, seed=1 + turn)
            rates[kind].setdefault(name, []).append(found["tokens_s"])
            if "loop_tokens_s" in found:
                rates[kind].setdefault(LOOP, []).append(found["loop_tokens_s"])
            if kind == "b8" and "outside" in found:
                overheads.append(found["outside"])
    return overheads


def _choose(sides: Sides, peer: str) -> dict[str, Any]:
    return sides.ask(
        peer,
        "choose",
        batches=list(BATCHES),
        context=CONTEXT_TOKENS,
        steps=sides.steps,
        prompt=PROMPT_TOKENS,
        vocab=sides.folder.signature.vocab,
    )


def report_memory(sides: Sides) -> None:
    """Load time and memory of each runtime alone, and of two workers of ours."""
    for name in sides.names:
        with sides.running(name):
            pass  # Files that a first start makes or reads are there for those that are measured.
        with sides.running(name) as loads:
            if name == LLAMACPP:
                print(f"{name}: built for {sides.ask(name, 'system')['system'].strip()}")
            _warm(sides, name)
            print(f"{name}: loaded in {loads[name]:.2f} s; {sides.memory(name)}")
    one, two = (Sides(sides.folder, sides.threads, sides.steps, peers=False) for _ in range(2))
    with one.running(OURS), two.running(OURS):
        for side in (one, two):
            _warm(side, OURS)
        for number, side in enumerate((one, two), start=1):
            print(f"{OURS}, worker {number} of two: {side.memory(OURS)}")


def _warm(sides: Sides, name: str) -> None:
    if name == LLAMACPP:
        # It has no KV before it was told what it is measured in.
        batch, vocab = max(BATCHES), sides.folder.signature.vocab
        sides.ask(name, "warm", batch=batch, context=CONTEXT_TOKENS, steps=sides.steps, vocab=vocab)
        return
    sides.measure(name, f"b{max(BATCHES)}", seed=0)


def report_interactive(sides: Sides) -> float:
    """First-token time behind background prompts."""
    found = {name: float(v) for name, v in sides.ask(OURS, "interactive", **INTERACTIVE).items()}
    allowed_s = 1.5 * found["idle_s"] + found["turn_s"] + found["snapshot_s"]
    milliseconds = {name.removesuffix("_s"): 1000 * value for name, value in found.items()}
    print(
        "first token of an interactive request: {idle:.0f} ms idle; behind eight background "
        "prompts {reading:.0f} ms while they are read, {decoding:.0f} ms while all lanes decode; "
        "a turn {turn:.0f} ms, a lane's snapshot {snapshot:.1f} ms".format(**milliseconds)
        + f"; allowed {1000 * allowed_s:.0f} ms"
    )
    return interactive_ratio(found)


def report_shared_prefix(sides: Sides) -> float:
    """Prefills of a prefix that comes many times at once."""
    found = sides.ask(OURS, "shared_prefix", **SHARED)
    print(
        f"a prefix of {SHARED['prefix']} tokens, {SHARED['requests']} requests at once: read "
        f"{found['prefills']:.2f} times, {found['seconds']:.1f} s to all first tokens"
    )
    return float(found["prefills"])


def report_sustained(sides: Sides, minutes: float) -> float | None:
    """Decode for minutes beside the plain loop, in turns of some seconds."""
    ratios: list[list[float]] = []
    sides.measure(OURS, "b8", seed=0)
    start = time.monotonic()
    seed = 100_000
    while (minute := int((time.monotonic() - start) / SECONDS_A_MINUTE)) < minutes:
        seed += 1
        found = sides.ask(
            OURS, "decode", batch=8, context=CONTEXT_TOKENS, steps=SUSTAIN_STEPS, seed=seed
        )
        if len(ratios) <= minute:
            ratios.extend([] for _ in range(minute + 1 - len(ratios)))
            print(f"minute {minute}: {sides.memory(OURS)}")
        ratios[minute].append(found["tokens_s"] / found["loop_tokens_s"])
    print("engine over loop by minute: " + " ".join(f"{median(m):.3f}" for m in ratios if m))
    print(f"after {minutes:g} minutes: {sides.memory(OURS)}")
    return sustained_ratio(ratios)


if __name__ == "__main__":
    sys.exit(main())
