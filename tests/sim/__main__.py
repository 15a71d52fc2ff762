"""`python -m tests.sim`: many simulated runs, one run with a trace, or all mutants."""

from __future__ import annotations

import argparse
import sys

from tests.sim.world import corpus
from tests.sim.world.profiles import BY_NAME
from tests.sim.world.runner import describe, run_many
from tests.sim.world.world import run_seed


def main() -> int:
    """Exit status 0 when nothing was violated, or every mutant was caught."""
    asked = _parser().parse_args()
    if asked.mutants:
        from tests.sim.world.mutation import hunt_all

        return hunt_all(asked.only, jobs=asked.jobs)
    if asked.hunt:
        from tests.sim.world.mutation import hunt_here

        return hunt_here(asked.hunt)
    if asked.trace:
        outcome = run_seed(asked.seed, asked.profile, trace=print)
        print(describe(outcome) if outcome.violation else f"nothing was violated: {outcome}")
        return 1 if outcome.violation else 0
    seeds = range(asked.seed, asked.seed + asked.runs)
    summary = run_many(seeds, asked.profile, jobs=asked.jobs)
    for failed in summary.failed:
        corpus.add(failed.seed, failed.profile, failed.violation.splitlines()[0][:100])
    print("profiles:", ", ".join(f"{n} {c}" for n, c in sorted(summary.profiles.items())))
    print("happened:", ", ".join(f"{n} {c}" for n, c in sorted(summary.counts.items())))
    print(f"virtual time: {summary.virtual_s:.0f} s in {summary.wall_s:.1f} s")
    print(summary.line)
    return 1 if summary.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=1, help="the first, or the one to trace")
    parser.add_argument("--profile", choices=sorted(BY_NAME), help="one kind of runs only")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--trace", action="store_true", help="run one seed and say all of it")
    parser.add_argument("--mutants", action="store_true", help="hunt the seeded bugs instead")
    parser.add_argument("--hunt", default="", help="one mutant, in this process")
    parser.add_argument("--only", default="", help="mutants whose name has this")
    return parser


if __name__ == "__main__":
    sys.exit(main())
