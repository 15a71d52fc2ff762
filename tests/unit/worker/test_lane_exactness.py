"""Saved, shared and parked keys and values against undisturbed runs, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.models.folder import ModelFolder
from agent.worker.host_kv import HostKv
from agent.worker.lane_file import Restored, restore
from agent.worker.model_runner import ModelRunner
from agent.worker.prefix_cache import BLOCK_TOKENS, reusable_blocks
from bus.ids import NumericsId
from bus.messages.sampling import SamplingParams
from tests.harness.lane_run import GREEDY, SEEDED, LaneRun, park_run, wanted_by
from tests.harness.models import DECODERS

LANES = 4
ANSWER = 30


@pytest.fixture(scope="module", params=DECODERS)
def folder(request: pytest.FixtureRequest) -> ModelFolder:
    make: Callable[[], ModelFolder] = request.param
    return make()


@pytest.fixture(scope="module")
def runner(folder: ModelFolder) -> ModelRunner:
    return ModelRunner(folder, device="cpu", lanes=LANES, kv_bytes=256 << 20, threads=1)


def prompt_of(runner: ModelRunner, length: int, seed: int = 0) -> list[int]:
    high = 127 if runner.folder.signature.vocab < 1000 else 40_000
    ids: list[int] = np.random.default_rng([seed, length]).integers(32, high, length).tolist()
    return ids


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_lane_saved_mid_answer_goes_on_in_another_lane(
    runner: ModelRunner, params: SamplingParams
) -> None:
    prompt = prompt_of(runner, 150)
    undisturbed = LaneRun(runner, 0, params, prompt).run(ANSWER)
    run = LaneRun(runner, 3, params, prompt)
    run.run(15)
    host = HostKv(64 << 20)
    host.save(1, runner.slab, run.lane, run.computed)
    # Whoever had the lanes meanwhile left something else in them.
    LaneRun(runner, 1, GREEDY, prompt_of(runner, 200, seed=2)).prefill()
    LaneRun(runner, 3, GREEDY, prompt_of(runner, 200, seed=3)).prefill()
    host.load(1, runner.slab, 1, run.computed)
    run.lane = 1
    assert run.run(ANSWER) == undisturbed


@pytest.mark.parametrize("length", [66, 130, 300])
def test_a_prompt_on_anothers_prefix_gives_the_same_bits(runner: ModelRunner, length: int) -> None:
    prompt = prompt_of(runner, length)
    shared = reusable_blocks(length) * BLOCK_TOKENS
    want = LaneRun(runner, 0, GREEDY, prompt)
    want.run(ANSWER)
    kept = runner.slab.read_lane(0, want.computed).data
    LaneRun(runner, 1, GREEDY, prompt[:shared] + prompt_of(runner, 90, seed=1)).prefill()
    host = HostKv(64 << 20)
    host.save(1, runner.slab, 1, shared)
    host.load(1, runner.slab, 2, shared)
    run = LaneRun(runner, 2, GREEDY, prompt, computed=shared)
    assert run.run(ANSWER) == want.generated
    again = runner.slab.read_lane(2, run.computed).data
    assert np.array_equal(again.view(np.uint32), kept.view(np.uint32))


def test_closeness_where_steps_stand_for_chunks(
    runner: ModelRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not exact is marked, runs, and is told as a count of differing texts."""
    texts, differing = 3, 0
    for seed in range(texts):
        first = LaneRun(runner, 0, GREEDY, prompt_of(runner, 70, seed))
        first.run(40)
        park_run(tmp_path, first, first.computed)
        prompt = [*first.prompt, *first.generated, *prompt_of(runner, 20, seed)]
        undisturbed = LaneRun(runner, 1, GREEDY, prompt).run(ANSWER)
        run = LaneRun(runner, 2, GREEDY, prompt)
        restored = restore(tmp_path, wanted_by(run))
        assert isinstance(restored, Restored)
        assert restored.saved.tokens == first.computed
        assert not restored.exact
        assert restored.problem
        runner.slab.write_lane(2, restored.saved, restored.saved.tokens)
        run.computed = restored.saved.tokens
        differing += run.run(ANSWER) != undisturbed
    with capsys.disabled():
        name = runner.folder.name
        print(f"\n{name}: {differing} of {texts} texts differ where steps stand for chunks")


def test_other_numerics_are_marked_and_the_bits_are_the_file_s(
    runner: ModelRunner, tmp_path: Path
) -> None:
    run = LaneRun(runner, 0, GREEDY, prompt_of(runner, 70))
    run.run(5)
    park_run(tmp_path, run, run.computed)
    elsewhere = replace(wanted_by(run), numerics=NumericsId("other"))
    restored = restore(tmp_path, elsewhere)
    assert isinstance(restored, Restored)
    assert not restored.exact
    mine = runner.slab.read_lane(0, run.computed).data
    assert np.array_equal(restored.saved.data.view(np.uint32), mine.view(np.uint32))
