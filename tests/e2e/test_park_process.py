"""A parked lane goes on in another process as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.models.folder import ModelFolder
from agent.worker.model_runner import ModelRunner
from agent.worker.prefix_cache import BLOCK_TOKENS
from bus.messages.sampling import SamplingParams
from tests.harness.lane_run import GREEDY, SEEDED, LaneRun, go_on_elsewhere, park_run
from tests.harness.models import DECODERS

ANSWER = 40


@pytest.fixture(scope="module", params=DECODERS)
def runner(request: pytest.FixtureRequest) -> ModelRunner:
    make: Callable[[], ModelFolder] = request.param
    return ModelRunner(make(), device="cpu", lanes=3, kv_bytes=256 << 20, threads=1)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_parked_lane_goes_on_in_a_new_process(
    runner: ModelRunner, params: SamplingParams, tmp_path: Path
) -> None:
    prompt = np.random.default_rng(5).integers(32, 127, 100).tolist()
    undisturbed = LaneRun(runner, 0, params, prompt).run(ANSWER)
    run = LaneRun(runner, 2, params, prompt)
    run.run(35)
    whole_blocks = run.computed // BLOCK_TOKENS * BLOCK_TOKENS
    for tokens in (run.computed, whole_blocks):
        park_run(tmp_path, run, tokens)
        told = go_on_elsewhere(runner.folder, tmp_path, run, ANSWER)
        assert told == {"tokens": undisturbed, "restored": tokens, "exact": True, "problem": ""}
