"""A real worker process with the toy model, spoken to over its pipes as an agent does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent.worker.scheduler import EXTRA_WAITING
from bus.ids import GenerationId, pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import (
    UNASKED,
    Accepted,
    Cancel,
    Failed,
    Output,
    Pause,
    Ping,
    Pong,
    Ready,
    Rejected,
    Resume,
    Stop,
    Submit,
)
from bus.transport.orphan import EXIT_ORPHANED
from tests.harness.models import toy_model_folder
from tests.harness.worker_agent import Agent


@pytest.fixture(scope="module")
def folder() -> Path:
    return toy_model_folder().path


@pytest.fixture
def agent(folder: Path, run_dir: Path) -> Iterator[Agent]:
    agent = Agent(folder, run_dir, "--lanes", "4", "--kv-bytes", str(16 << 20))
    yield agent
    agent.close()


def submit(generation: int, *, tokens: int = 30, prompt: int = 10, wall_ms: int = 0) -> Submit:
    return Submit(
        generation=GenerationId(generation),
        context=pack_ids(range(40, 40 + prompt)),
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_new_tokens=tokens,
        prompt_tokens=prompt,
        wall_ms=wall_ms,
    )


def test_ready_says_what_was_loaded(agent: Agent) -> None:
    ready = agent.take(Ready)
    assert ready.worker == 7
    assert ready.lanes == 4
    assert ready.window_tokens == 4096
    assert ready.kv_total_tokens == 4 * 4096
    assert ready.device == "cpu"
    assert ready.tokenizer_digest > 0
    assert len(ready.numerics) == 32


def test_a_generation_comes_back_accepted_in_runs_and_finished(agent: Agent) -> None:
    agent.send(submit(1))
    finish = agent.finish(1)
    assert finish.reason == "length"
    assert finish.usage.prompt_tokens == 10
    assert finish.usage.completion_tokens == 30
    assert len(agent.tokens(1)) == 30
    kinds = [type(message) for message in agent.messages]
    assert kinds[:4] == [Ready, Accepted, Pong, Output]
    begins, first = agent.messages[2], agent.messages[3].runs[0]
    assert (begins.nonce, begins.stats.phase) == (UNASKED, "prefill"), "it tells that work begins"
    assert (first.first_index, len(first.ids)) == (0, 4), "the first token leaves alone, at once"
    # Then 16 tokens, or 25 ms: few messages, not one a token.
    assert kinds.count(Output) < 10
    assert agent.messages[-1].stats.decode_tokens == 29


def test_four_at_once_get_what_each_gets_alone(agent: Agent) -> None:
    for generation in range(1, 5):
        agent.send(submit(generation, prompt=10 * generation))
    for generation in range(1, 5):
        agent.finish(generation)
    together = [agent.tokens(generation) for generation in range(1, 5)]
    for generation in range(1, 5):
        agent.send(submit(10 + generation, prompt=10 * generation))
        agent.finish(10 + generation)
    assert [agent.tokens(10 + generation) for generation in range(1, 5)] == together


def test_bad_submits_are_rejected_and_the_worker_goes_on(agent: Agent) -> None:
    agent.send(submit(1, prompt=0))
    agent.send(submit(2, prompt=4100))
    rejected = agent.take(Rejected)
    assert (rejected.generation, rejected.code, rejected.param) == (1, "invalid", "prompt")
    too_long = agent.take(Rejected)
    assert too_long.code == "context_length_exceeded"
    assert (too_long.length, too_long.max) == (4100, 4096)
    agent.wait(lambda: agent.child.pipe.send(b"\xc1 no message"))
    agent.send(submit(3, tokens=0))
    assert agent.finish(3).reason == "length"


def test_more_than_it_may_hold_are_refused_as_queue_full(agent: Agent) -> None:
    # Lanes that are paused take none, so the queue fills.
    for generation in range(1, 5):
        agent.send(submit(generation, tokens=4000))
        agent.wait(partial(agent.has_tokens, generation))
        agent.send(Pause(generation=GenerationId(generation)))
    for generation in range(5, 4 + 4 + EXTRA_WAITING + 2):
        agent.send(submit(generation))
    assert agent.take(Rejected).code == "queue_full"


def test_an_interactive_request_takes_a_lane_and_gives_it_back(agent: Agent) -> None:
    for generation in range(1, 5):
        agent.send(replace(submit(generation, tokens=1200, prompt=10 * generation), qos=3))
    for generation in range(1, 5):
        agent.wait(partial(agent.has_tokens, generation))
    agent.send(submit(5, tokens=3))
    assert agent.finish(5).reason == "length"
    for generation in range(1, 5):
        assert agent.finish(generation).usage.completion_tokens == 1200
    assert len(agent.tokens(1)) == 1200, "without gap or repeat"
    (stats,) = [m.stats for m in agent.messages if isinstance(m, Output)][-1:]
    assert (stats.preemptions, stats.lanes_used) == (1, 0)


def test_a_prompt_that_was_seen_before_is_not_computed_again(agent: Agent) -> None:
    agent.send(submit(1, prompt=200))
    agent.finish(1)
    agent.send(submit(2, prompt=200))
    assert agent.finish(2).usage.cached_tokens == 198
    assert agent.tokens(2) == agent.tokens(1)
    agent.send(Ping(nonce=3))
    pong = agent.take(Pong, lambda pong: pong.nonce == 3)
    assert pong.prefixes
    assert pong.stats.cached_tokens == 198


def test_cancel_and_expiry_end_a_generation_early(agent: Agent) -> None:
    agent.send(submit(1, tokens=4000))
    agent.send(submit(2, tokens=4000, wall_ms=150))
    agent.wait(lambda: len(agent.tokens(1)) > 3)
    agent.send(Cancel(generation=GenerationId(1)))
    assert agent.finish(1).reason == "cancelled"
    assert agent.finish(1).usage.completion_tokens == len(agent.tokens(1))
    assert agent.finish(2).reason in ("expired", "length")
    agent.send(Ping(nonce=5))
    pong = agent.take(Pong, lambda pong: pong.nonce == 5)
    assert (pong.stats.lanes_used, pong.stats.queued) == (0, 0)


def test_an_expiry_wakes_an_idle_worker(agent: Agent) -> None:
    agent.take(Ready)
    agent.send(Pause(generation=GenerationId(1)))
    agent.send(submit(1, tokens=4000, wall_ms=300))
    agent.send(Pause(generation=GenerationId(1)))
    assert agent.finish(1).reason == "expired"


def test_a_wall_budget_beyond_what_a_wait_can_be_is_only_waited_for_in_parts(agent: Agent) -> None:
    """Waits are counted in 31 bits of milliseconds; the longest budget has 32."""
    agent.send(submit(1, tokens=4000, wall_ms=2**32 - 1))
    agent.wait(lambda: agent.has_tokens(1))
    agent.send(Pause(generation=GenerationId(1)))
    agent.send(Ping(nonce=1))
    agent.take(Pong, lambda pong: pong.nonce == 1)
    agent.send(Ping(nonce=2))
    agent.take(Pong, lambda pong: pong.nonce == 2)
    agent.send(Cancel(generation=GenerationId(1)))
    assert agent.finish(1).reason == "cancelled"


def test_pause_holds_and_resume_goes_on_without_gap(agent: Agent) -> None:
    agent.send(submit(1, tokens=2000))
    agent.wait(lambda: len(agent.tokens(1)) > 20)
    agent.send(Pause(generation=GenerationId(1)))
    agent.send(Ping(nonce=1))
    agent.take(Pong, lambda pong: pong.nonce == 1)
    held = agent.tokens(1)
    agent.send(submit(2, tokens=300))
    agent.finish(2)
    assert len(agent.tokens(1)) <= len(held) + 16, "what had not left yet may still come"
    agent.send(Resume(generation=GenerationId(1)))
    assert agent.finish(1).reason == "length"
    assert len(agent.tokens(1)) == 2000


def test_stop_ends_the_process_in_order(agent: Agent) -> None:
    agent.take(Ready)
    agent.send(submit(1, tokens=4000))
    agent.send(Stop())
    assert agent.exit_code() == 0


def test_ctrl_c_is_the_agents_business_and_sigterm_ends(agent: Agent) -> None:
    agent.take(Ready)
    agent.child.signal(signal.SIGINT)
    agent.send(submit(1, tokens=3))
    agent.finish(1)
    agent.child.signal(signal.SIGTERM)
    assert agent.exit_code() == -signal.SIGTERM


def test_the_end_of_the_death_pipe_ends_the_worker(agent: Agent) -> None:
    agent.take(Ready)
    agent.send(submit(1, tokens=4000))
    os.close(agent.death_write)
    agent.death_write = -1
    assert agent.exit_code() == EXIT_ORPHANED


def failure(folder: Path, run_dir: Path, *args: str) -> Failed:
    agent = Agent(folder, run_dir, *args)
    try:
        failed = agent.take(Failed)
        assert agent.exit_code() == 1
    finally:
        agent.close()
    return failed


def test_a_folder_that_is_not_there_fails_with_the_remedy(tmp_path: Path, run_dir: Path) -> None:
    failed = failure(tmp_path / "none", run_dir)
    assert failed.code == "not_found"
    assert "sfctl model import" in failed.message


def test_a_kv_budget_too_small_fails_with_the_remedy(folder: Path, run_dir: Path) -> None:
    failed = failure(folder, run_dir, "--kv-bytes", "1000")
    assert failed.code == "config_invalid"
    assert "at least" in failed.message


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a GPU")
def test_cuda_without_a_gpu_fails_with_the_remedy(folder: Path, run_dir: Path) -> None:
    failed = failure(folder, run_dir, "--device", "cuda")
    assert failed.code == "start_failed"
    assert "SUPERFLUID_WORKER_DEVICE" in failed.message
