"""Seeded bugs: one edit of one function's source, in a process of its own, hunted by the simulator.

Production has no seam for this. A mutant names a function and a text in it; the function is
compiled anew with that text replaced and put in its place, in a child process that ends after the
hunt. A text that is not there exactly once is an error: the mutant is out of date.
"""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import sys
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.sim.world.world import Outcome, run_seed

#: Seeds that a hunt may take.
MAX_SEEDS = 400
#: Seeds are apart from those of `make sim`, which find nothing.
FIRST_SEED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug. `target` is "module:Class.function" or "module:function".

    `profiles` are where it shows soonest; they take turns.
    """

    name: str
    target: str
    find: str
    replace: str
    profiles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hunt:
    """What came of hunting a mutant."""

    name: str
    seeds: int
    seconds: float
    #: None: it got away.
    outcome: Outcome | None
    #: What a core raised that was no check of its own; such runs do not count.
    crashes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        if self.outcome is None:
            seen = f" (crashes that do not count: {self.crashes[0]})" if self.crashes else ""
            return f"NOT CAUGHT {self.name}: {self.seeds} runs, {self.seconds:.1f} s{seen}"
        found = self.outcome
        return (
            f"caught {self.name}: run {self.seeds}, {self.seconds:.1f} s, {found.kind}, "
            f"{found.profile}: {found.violation.splitlines()[0][:110]}"
        )


def apply(mutant: Mutant) -> None:
    """Put the bug into this process, for good.

    Raises:
        ValueError: its text is not in its function exactly once.
    """
    module_name, _, path = mutant.target.partition(":")
    module = importlib.import_module(module_name)
    *outer, name = path.split(".")
    owner: Any = module
    for part in outer:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    function = original.fget if isinstance(original, property) else original
    function = getattr(function, "__func__", function)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(mutant.find) != 1:
        raise ValueError(
            f"{mutant.name}: {mutant.find!r} is {source.count(mutant.find)} times in "
            f"{mutant.target}; bring the mutant up to date"
        )
    changed = source.replace(mutant.find, mutant.replace)
    code = compile(
        changed,
        f"<mutant {mutant.name}>",
        "exec",
        flags=annotations.compiler_flag,
        dont_inherit=True,
    )
    namespace: dict[str, Any] = {}
    exec(code, module.__dict__, namespace)
    setattr(owner, name, namespace[name])
    if owner is module:
        _replace_imports(original, namespace[name])


def _replace_imports(original: object, changed: object) -> None:
    """Modules that took a function by its name have it under that."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is original:
                setattr(module, name, changed)


def hunt(mutant: Mutant, max_seeds: int = MAX_SEEDS) -> Hunt:
    """Run seeds with the bug in place until a rule is broken. In a process of its own."""
    apply(mutant)
    started = time.monotonic()
    crashes: list[str] = []
    for number in range(max_seeds):
        profile = mutant.profiles[number % len(mutant.profiles)]
        outcome = run_seed(FIRST_SEED + number, profile)
        if outcome.kind in ("oracle", "invariant"):
            took_s = time.monotonic() - started
            return Hunt(mutant.name, number + 1, took_s, outcome, tuple(crashes))
        if outcome.kind == "crash":
            crashes.append(outcome.violation)
    return Hunt(mutant.name, max_seeds, time.monotonic() - started, None, tuple(crashes[:3]))


def hunt_many(mutants: list[Mutant], jobs: int = 2) -> list[Hunt]:
    """Hunt several, each in a fresh process."""
    # Fresh ones: a fork would take along what this process has loaded and changed.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        found = []
        for result in pool.map(hunt, mutants):
            print(result.line, flush=True)
            found.append(result)
        return found


def hunt_all(only: str = "", *, jobs: int = 2) -> int:
    """Hunt all of the catalogue, and say so; exit status 1 when one got away."""
    from tests.sim.world.mutants import MUTANTS

    wanted = [mutant for mutant in MUTANTS if only in mutant.name]
    found = hunt_many(wanted, jobs)
    caught = sum(result.outcome is not None for result in found)
    print(f"mutants: caught={caught} of={len(wanted)}")
    return 0 if caught == len(wanted) else 1
