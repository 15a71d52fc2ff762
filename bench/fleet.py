"""What the cluster costs over the bare engine: one node, the same threads, prompts and sampling.

Each pair runs the same prompts once through a bare engine (scheduler and sampler in one process)
and once through client, head, agent and worker; the pairs alternate in order, so drift of the
machine is unfair to none. Both engines stay loaded; only one works at a time. Two processes of one
program differ by up to a tenth in speed for as long as they live, by where their memory came to
lie; so the pairs are spread over several starts of both sides.

    python -m bench.fleet --pairs 15 --threads 2
    python -m bench.fleet --head --quick
    python -m bench.fleet --sim
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench import fleet_sim, head_alone
from bench.cluster import Cluster, own_cpu_s
from bench.models import add_model_option, open_model
from bench.program import Program

STREAMS = (1, 8)
MAX_NEW = 64
PROMPT_TOKENS = 24


class BareEngine(Program):
    """bench/bare_engine.py as a child process."""

    def __init__(self, folder: Path, threads: int) -> None:
        super().__init__("bench.bare_engine", "--folder", str(folder), "--threads", str(threads))
        self.answer()

    def run(self, prompts: list[list[int]], max_new: int) -> dict[str, Any]:
        self.ask(json.dumps({"prompts": prompts, "max_new": max_new}))
        return self.answer()


class FleetBench:
    """Both sides, and what was measured of them."""

    def __init__(self, bare: BareEngine, cluster: Cluster, vocab: int, seed: int) -> None:
        self._bare = bare
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._vocab = vocab
        self.differing = 0

    def prompts(self, count: int) -> list[list[int]]:
        return [
            [self._rng.randrange(100, self._vocab) for _ in range(PROMPT_TOKENS)]
            for _ in range(count)
        ]

    def pair(self, streams: int, max_new: int, bare_first: bool) -> tuple[float, float]:
        """Tokens/s of the cluster and of the bare engine on the same new prompts."""
        prompts = self.prompts(streams)
        if bare_first:
            bare = self._bare.run(prompts, max_new)
            seconds, tokens = self._cluster_run(prompts, max_new)
        else:
            seconds, tokens = self._cluster_run(prompts, max_new)
            bare = self._bare.run(prompts, max_new)
        self.differing += sum(a != b for a, b in zip(tokens, bare["tokens"], strict=True))
        total = streams * max_new
        return total / seconds, total / bare["seconds"]

    def first_token_pair(self) -> tuple[float, float]:
        """Milliseconds to the first token of one prompt: cluster, bare."""
        prompts = self.prompts(1)
        start = time.perf_counter()
        call = self._generate(prompts[0], 1)
        with call.stream() as stream:
            for event in stream:
                if event.type == "token":
                    first_s = time.perf_counter() - start
        bare = self._bare.run(prompts, 1)
        return first_s * 1000, bare["first_s"][0] * 1000

    def cpu_ms_per_step(self, streams: int, max_new: int) -> dict[str, float]:
        """CPU milliseconds per decode step, by role; the client counts too."""
        before, own_before = self._cluster.cpu_s(), own_cpu_s()
        self._cluster_run(self.prompts(streams), max_new)
        after, own_after = self._cluster.cpu_s(), own_cpu_s()
        used = {role: after[role] - before[role] for role in after}
        used["client"] = own_after - own_before
        return {role: 1000 * seconds / max_new for role, seconds in used.items()}

    def _cluster_run(self, prompts: list[list[int]], max_new: int) -> tuple[float, list[list[int]]]:
        start = time.perf_counter()
        calls = [self._generate(prompt, max_new) for prompt in prompts]
        answers = [call.result() for call in calls]
        return time.perf_counter() - start, [list(answer.tokens) for answer in answers]

    def _generate(self, prompt: list[int], max_new: int) -> Any:
        return self._cluster.client.generate(
            self._cluster.model, prompt, max_new=max_new, temperature=0.0, ignore_eos=True
        )


@dataclass
class Measured:
    """What all starts of both sides gave together."""

    rates: dict[int, list[tuple[float, float]]] = field(
        default_factory=lambda: {streams: [] for streams in STREAMS}
    )
    added_ms: list[float] = field(default_factory=list)
    cpu_ms: list[dict[str, float]] = field(default_factory=list)
    differing: int = 0

    def take(self, bench: FleetBench, pairs: int) -> None:
        """One start's share."""
        for streams in STREAMS:
            bench.pair(streams, MAX_NEW, True)
            self.rates[streams] += [
                bench.pair(streams, MAX_NEW, number % 2 == 0) for number in range(pairs)
            ]
        first = [bench.first_token_pair() for _ in range(8 * pairs)]
        bare_ms = median(bare for _, bare in first)
        self.added_ms += [cluster - bare_ms for cluster, _ in first]
        self.cpu_ms.append(bench.cpu_ms_per_step(max(STREAMS), 4 * MAX_NEW))
        self.differing += bench.differing

    def figures(self) -> dict[str, Any]:
        """Everything, as the JSON line has it."""
        found: dict[str, Any] = {}
        for streams, rates in self.rates.items():
            ratios = sorted(cluster / bare for cluster, bare in rates)
            found[f"cluster_over_engine_{streams}"] = round(median(ratios), 4)
            found[f"interval_{streams}"] = [round(bound, 4) for bound in median_interval(ratios)]
            found[f"cluster_tokens_per_s_{streams}"] = round(median(c for c, _ in rates), 1)
            found[f"engine_tokens_per_s_{streams}"] = round(median(b for _, b in rates), 1)
        added = sorted(self.added_ms)
        found["added_ttft_ms_p50"] = round(median(added), 3)
        found["added_ttft_ms_p99"] = round(added[int(0.99 * (len(added) - 1))], 3)
        roles = {role: median(ms[role] for ms in self.cpu_ms) for role in self.cpu_ms[0]}
        outside = sum(ms for role, ms in roles.items() if role != "worker")
        found["cpu_ms_per_step"] = round(outside, 3)
        found["cpu_ms_by_role"] = {role: round(ms, 3) for role, ms in roles.items()}
        found["texts_differing"] = self.differing
        return found


def median_interval(ordered: list[float]) -> tuple[float, float]:
    """About 95% confidence interval of the median, by order statistics.

    Source: binomial(n, 1/2) ranks, normal approximation.
    """
    n = len(ordered)
    half = 0.98 * n**0.5
    low, high = max(0, int(n / 2 - half)), min(n - 1, int(n / 2 + half))
    return ordered[low], ordered[high]


def main() -> None:
    parser = argparse.ArgumentParser(description="what the cluster costs over the bare engine")
    parser.add_argument(
        "--head", action="store_true", help="the head alone, against nodes without models"
    )
    parser.add_argument("--quick", action="store_true", help="of the head alone: a tenth of it")
    parser.add_argument("--pairs", type=int, default=18, help="interleaved pairs [default: 18]")
    parser.add_argument("--starts", type=int, default=6, help="of both sides [default: 6]")
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="engine threads on both sides [default: all processors]",
    )
    parser.add_argument("--sim", action="store_true", help="simulate large fleets instead")
    add_model_option(parser)
    options = parser.parse_args()
    if options.sim:
        fleet_sim.main()
        return
    if options.head:
        head_alone.report(quick=options.quick)
        return
    folder = open_model(options.model_folder)
    measured = Measured()
    starts = min(options.starts, options.pairs)
    for start in range(starts):
        pairs = (options.pairs + start) // starts
        with contextlib.ExitStack() as stack:
            # The one that starts later tends to be faster; each side is as often the later one.
            if start % 2:
                bare = stack.enter_context(BareEngine(folder.path, options.threads))
            cluster = stack.enter_context(Cluster(folder.path, threads=options.threads))
            if not start % 2:
                bare = stack.enter_context(BareEngine(folder.path, options.threads))
            measured.take(FleetBench(bare, cluster, folder.signature.vocab, seed=start), pairs)
    found = measured.figures()
    found |= {"pairs": options.pairs, "starts": starts, "threads": options.threads}
    _print_table(found)
    print(json.dumps(found))


def _print_table(found: dict[str, Any]) -> None:
    print(
        f"cluster over bare engine, {found['pairs']} pairs over "
        f"{found['starts']} starts, {found['threads']} threads"
    )
    print(f"{'streams':>8} {'cluster':>9} {'engine':>9} {'ratio':>7}   interval of the median")
    for streams in STREAMS:
        low, high = found[f"interval_{streams}"]
        print(
            f"{streams:>8} {found[f'cluster_tokens_per_s_{streams}']:>9} "
            f"{found[f'engine_tokens_per_s_{streams}']:>9} "
            f"{found[f'cluster_over_engine_{streams}']:>7}   {low} to {high}"
        )
    print(
        f"added time to the first token: p50 {found['added_ttft_ms_p50']} ms, "
        f"p99 {found['added_ttft_ms_p99']} ms"
    )
    print(f"CPU per decode step outside the worker: {found['cpu_ms_per_step']} ms, by role:")
    print(f"  {found['cpu_ms_by_role']}")
    print(f"texts that differ from the bare engine's: {found['texts_differing']}")


if __name__ == "__main__":
    main()
