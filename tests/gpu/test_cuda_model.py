"""Models on a GPU: the checks of bench/gpu_checks.py, and a worker process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.models.folder import ModelFolder
from bench.gpu_checks import CHECKS, NotPossible
from bus.ids import GenerationId, pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Ready, Submit
from tests.harness.models import smollm2_folder, toy_model_folder
from tests.harness.worker_agent import Agent

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", [toy_model_folder, smollm2_folder])
def test_a_model_holds_what_it_must(gpu: str, check: str, model: Callable[[], ModelFolder]) -> None:
    try:
        CHECKS[check](model(), "cuda")
    except NotPossible as reason:
        pytest.skip(str(reason))


def test_a_worker_process_serves_from_the_gpu(gpu: str, tmp_path: Path) -> None:
    agent = Agent(toy_model_folder().path, tmp_path, "--device", "cuda")
    try:
        assert agent.take(Ready).device == f"cuda ({gpu})"[:64]
        agent.send(
            Submit(
                generation=GenerationId(1),
                context=pack_ids(list(b"hello")),
                sampling=SamplingParams(temperature=0.0, ignore_eos=True),
                max_new_tokens=8,
                prompt_tokens=5,
            )
        )
        assert agent.finish(1).reason == "length"
        assert len(agent.tokens(1)) == 8
    finally:
        agent.close()
