"""Spinning threads are kept while they get the processors, and tried again ever more rarely."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agent.models.folder import ModelFolder
from agent.worker.model_runner import ModelRunner
from agent.worker.spinning import FIRST_CALM_S, MOST_CALM_S, WINDOW_S, SpinPolicy
from tests.harness.models import smollm2_folder, toy_model_folder

STEP_S = 0.02
#: Processor time of two threads that spin undisturbed, and beside two busy neighbours.
QUIET = 2 * 0.95 * STEP_S
BUSY = 2 * 0.4 * STEP_S


def run(policy: SpinPolicy, seconds: float, cpu_s: float) -> float:
    """Steps for some seconds of running; gives the seconds of those that spun."""
    spun_s = 0.0
    for _ in range(round(seconds / STEP_S)):
        spun_s += STEP_S if policy.spinning else 0.0
        policy.note(STEP_S, cpu_s)
    return spun_s


def test_spins_on_as_long_as_nobody_else_wants_the_processors() -> None:
    policy = SpinPolicy(threads=2)
    assert round(run(policy, 60, QUIET), 6) == 60


def test_one_short_disturbance_is_not_enough() -> None:
    policy = SpinPolicy(threads=2)
    run(policy, 4 * STEP_S, QUIET)
    policy.note(STEP_S, 0.5 * QUIET)
    assert policy.spinning


def test_stops_within_a_window_when_neighbours_come() -> None:
    policy = SpinPolicy(threads=2)
    run(policy, 10, QUIET)
    assert run(policy, 2 * WINDOW_S, BUSY) <= 2 * WINDOW_S
    assert not policy.spinning


def test_tries_again_after_doubling_times_and_costs_little() -> None:
    policy = SpinPolicy(threads=2)
    tries: list[float] = []
    seconds = 0.0
    while len(tries) < 8:
        was = policy.spinning
        policy.note(STEP_S, BUSY)
        seconds += STEP_S
        if policy.spinning and not was:
            tries.append(seconds)
    calm = [later - earlier - WINDOW_S for earlier, later in pairwise(tries)]
    assert [round(pause) for pause in calm] == [2, 4, 8, 16, 32, 32, 32]
    assert MOST_CALM_S == 32
    assert run(policy, 320, BUSY) <= 0.01 * 320


def test_spins_again_when_the_neighbours_have_gone() -> None:
    policy = SpinPolicy(threads=2)
    run(policy, 1.2 * WINDOW_S, BUSY)
    assert run(policy, FIRST_CALM_S - 2 * STEP_S, QUIET) == 0
    run(policy, 3 * STEP_S, QUIET)
    assert round(run(policy, 60, QUIET), 6) == 60


def bits(folder: ModelFolder, *, spin: bool) -> list[bytes]:
    """Logits after a prompt in each of three lanes, and of steps over one to three of them."""
    runner = ModelRunner(folder, device="cpu", lanes=4, kv_bytes=64 << 20, threads=2, spin=spin)
    prompt = list(range(40, 73))
    found = [runner.prefill_chunk(lane, prompt, 0).tobytes() for lane in range(3)]
    steps = [([50] * rows, [len(prompt) + rows] * rows) for rows in (1, 2, 3)]
    return found + [runner.decode(ids, lengths).tobytes() for ids, lengths in steps]


def test_threads_that_spin_give_the_same_bits() -> None:
    folder = toy_model_folder()
    assert bits(folder, spin=True) == bits(folder, spin=False)


@pytest.mark.model
def test_threads_that_spin_give_the_same_bits_of_a_real_model() -> None:
    folder = smollm2_folder()
    assert bits(folder, spin=True) == bits(folder, spin=False)
