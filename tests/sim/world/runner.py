"""Many runs on all cores: the corpus first, then seeds in a row."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.sim.world import corpus
from tests.sim.world.world import Outcome, run_seed

#: Runs of one task of a worker process.
CHUNK = 25

Job = tuple[int, str | None]


@dataclass(slots=True)
class Summary:
    """What many runs gave."""

    runs: int = 0
    events: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    failed: list[Outcome] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    profiles: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.events += outcome.events
        self.virtual_s += outcome.virtual_s
        self.counts.update(outcome.counts)
        self.profiles[outcome.profile] += 1
        if outcome.violation:
            self.failed.append(outcome)

    @property
    def line(self) -> str:
        """The last line of `make sim`."""
        rate = self.events / self.wall_s if self.wall_s else 0.0
        return f"sim: runs={self.runs} violations={len(self.failed)} events_per_s={rate:.0f}"


def run_many(seeds: Iterable[int], profile: str | None = None, *, jobs: int = 2) -> Summary:
    """The corpus, then these seeds; each failure is printed as it comes.

    Args:
        seeds: of the runs.
        profile: of all of them; each seed chooses its own without.
        jobs: worker processes; 1 runs all in this one.
    """
    summary = Summary()
    started = time.monotonic()
    kept: list[Job] = list(corpus.read())
    planned: list[Job] = [(seed, profile) for seed in seeds]
    for outcome in _outcomes(kept + planned, jobs):
        summary.add(outcome)
        if outcome.violation:
            print(describe(outcome), flush=True)
    summary.runs = len(planned)
    summary.wall_s = time.monotonic() - started
    return summary


def describe(outcome: Outcome) -> str:
    """A failure as a person wants it: what, where, and how to see it again."""
    return (
        f"violation ({outcome.kind}) in seed {outcome.seed}, profile {outcome.profile}, after "
        f"{outcome.events} events and {outcome.virtual_s:.3f} s:\n  {outcome.violation}\n"
        f"  replay: {outcome.replay}"
    )


def _outcomes(planned: list[Job], jobs: int) -> Iterator[Outcome]:
    chunks = [planned[first : first + CHUNK] for first in range(0, len(planned), CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield from _run_chunk(chunk)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for outcomes in pool.map(_run_chunk, chunks):
            yield from outcomes


def _run_chunk(chunk: list[Job]) -> list[Outcome]:
    return [run_seed(seed, profile) for seed, profile in chunk]
