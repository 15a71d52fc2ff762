"""Seeded bugs: one edit of one function's source, in a process of its own, hunted by the simulator.

Production has no seam for this. A mutant names a function and a text in it; the function is
compiled anew with that text replaced and put in its place, in a child process that ends after the
hunt. A text that is not there exactly once is an error: the mutant is out of date.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
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
    #: Further edits, (target, find, replace), where one alone is made up for elsewhere.
    also: tuple[tuple[str, str, str], ...] = ()


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
        ValueError: a text is not in its function exactly once.
    """
    for target, find, replace in ((mutant.target, mutant.find, mutant.replace), *mutant.also):
        _edit(mutant.name, target, find, replace)


def _edit(name: str, target: str, find: str, replace: str) -> None:
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    *outer, function_name = path.split(".")
    owner: Any = module
    for part in outer:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, function_name)
    plain: Any = original.fget if isinstance(original, property) else original
    source = textwrap.dedent(inspect.getsource(plain))
    if source.count(find) != 1:
        raise ValueError(
            f"{name}: {find!r} is {source.count(find)} times in {target}; bring the mutant up "
            "to date"
        )
    code = compile(
        source.replace(find, replace),
        f"<mutant {name}>",
        "exec",
        flags=annotations.compiler_flag,
        dont_inherit=True,
    )
    namespace: dict[str, Any] = {}
    exec(code, module.__dict__, namespace)
    setattr(owner, function_name, namespace[function_name])
    if owner is module:
        _replace_imports(original, namespace[function_name])


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


def hunt_here(name: str) -> int:
    """Hunt one mutant of the catalogue in this process, which is no good afterwards."""
    from tests.sim.world.mutants import MUTANTS

    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    found = hunt(mutant)
    print(found.line)
    return 0 if found.outcome is not None else 1


def hunt_in_child(name: str) -> tuple[bool, str]:
    """Hunt one mutant in a process of its own.

    Returns:
        Whether it was caught, and a line about it.
    """
    command = [sys.executable, "-m", "tests.sim", "--hunt", name]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (child.stdout or child.stderr).strip().splitlines() or ["it said nothing"]
    return child.returncode == 0, lines[-1]


def hunt_all(only: str = "", *, jobs: int = 2) -> int:
    """Hunt all of the catalogue, and say so; exit status 1 when one got away."""
    from tests.sim.world.mutants import MUTANTS

    wanted = [mutant.name for mutant in MUTANTS if only in mutant.name]
    caught = 0
    with ThreadPoolExecutor(jobs) as pool:
        for is_caught, line in pool.map(hunt_in_child, wanted):
            print(line, flush=True)
            caught += is_caught
    print(f"mutants: caught={caught} of={len(wanted)}")
    return 0 if caught == len(wanted) else 1
