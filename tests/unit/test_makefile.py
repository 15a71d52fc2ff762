"""What `make` would run, as it prints it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def command_of(*words: str) -> str:
    """The line that starts a program of tests/."""
    kept = ("MAKE", "SEED", "RUNS", "SECONDS")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(kept)}
    done = subprocess.run(
        ["make", "-n", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return next(line.partition(" -m ")[2] for line in done.stdout.splitlines() if "tests." in line)


def test_the_simulator_begins_with_seed_1() -> None:
    assert command_of("sim") == "tests.sim --runs '4000' --seed '1'"
    assert command_of("sim", "SEED=", "RUNS=") == "tests.sim --runs '4000' --seed '1'"


def test_runs_and_seed_of_the_simulator_are_settable() -> None:
    assert command_of("sim", "RUNS=5", "SEED=77") == "tests.sim --runs '5' --seed '77'"


def test_the_fuzzer_draws_a_seed_unless_one_is_given() -> None:
    assert command_of("fuzz") == "tests.fuzz --seconds '60' --seed ''"
    assert command_of("fuzz", "SEED=9") == "tests.fuzz --seconds '60' --seed '9'"
