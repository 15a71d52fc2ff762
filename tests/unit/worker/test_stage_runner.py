"""Stages over slabs of their own, against the whole model's runner: the same logits, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agent.models.folder import ModelFolder
from agent.worker.model_runner import ModelRunner
from agent.worker.stage_runner import StageLanes, StageRunner
from bus.errors import StartError
from tests.harness.models import smollm2_folder, stage_folders, toy_model_folder
from tests.harness.stage_chain import deep_toy_folder, open_stages

LANES, WINDOW = 3, 320
#: Tokens of each lane, in chunks: one, a few, and longer than a short chunk may be.
CHUNKS = ([256, 40, 2], [5], [129])
STEPS = 4

Floats = npt.NDArray[np.float32]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((toy_model_folder, 2), id="toy-2"),
        pytest.param((deep_toy_folder, 3), id="toy4-3"),
        pytest.param((smollm2_folder, 3), id="smollm2-3", marks=pytest.mark.model),
    ],
)
def case(request: pytest.FixtureRequest) -> tuple[ModelFolder, list[StageRunner]]:
    make, stages = request.param
    whole = make()
    return whole, open_stages(stage_folders(whole, stages))


def ids_of(lane: int, count: int) -> list[int]:
    ids: list[int] = np.random.default_rng([lane, count]).integers(32, 127, count).tolist()
    return ids


def results(
    chunk: Callable[[int, list[int], int], Floats], step: Callable[[list[int], list[int]], Floats]
) -> list[Floats]:
    """Logits after chunks of each lane, then after ragged steps of all."""
    found, lengths = [], []
    for lane, cuts in enumerate(CHUNKS):
        past = 0
        for count in cuts:
            found.append(chunk(lane, ids_of(lane, count), past).copy())
            past += count
        lengths.append(past)
    for _ in range(STEPS):
        lengths = [length + 1 for length in lengths]
        fed = [int(length) % 90 + 33 for length in lengths]
        found.append(step(fed, lengths).copy())
    return found


def through(lanes: list[StageLanes]) -> list[Floats]:
    def chunk(lane: int, ids: list[int], past: int) -> Floats:
        fed: Any = ids
        for stage in lanes:
            fed = stage.run_chunk(lane, fed, past)
        return np.asarray(fed)

    def step(ids: list[int], lengths: list[int]) -> Floats:
        fed: Any = ids
        for stage in lanes:
            fed = stage.run_step(fed, lengths)
        return np.asarray(fed)

    return results(chunk, step)


def test_chunks_and_ragged_steps_give_the_whole_models_bits(
    case: tuple[ModelFolder, list[StageRunner]],
) -> None:
    whole, stages = case
    kv_bytes = LANES * WINDOW * whole.kv_bytes_per_token()
    runner = ModelRunner(whole, device="cpu", lanes=LANES, kv_bytes=kv_bytes, threads=1)
    expected = results(runner.prefill_chunk, runner.decode)
    # Two groups over one session, the second with longer lanes.
    for window in (WINDOW, WINDOW + 37):
        found = through([stage.make_lanes(LANES, window) for stage in stages])
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_groups_do_not_see_each_others_lanes(
    case: tuple[ModelFolder, list[StageRunner]],
) -> None:
    _, stages = case
    first, second = ([s.make_lanes(1, 64) for s in stages] for _ in range(2))

    def after(lanes: list[StageLanes], ids: list[int], past: int) -> Floats:
        fed: Any = ids
        for stage in lanes:
            fed = stage.run_chunk(0, fed, past)
        return np.array(fed)

    alone = [after(first, ids_of(1, 20), 0), after(first, ids_of(2, 20), 20)]
    found = [after(second, ids_of(1, 20), 0)]
    after(first, ids_of(3, 30), 0)
    found.append(after(second, ids_of(2, 20), 20))
    np.testing.assert_array_equal(found, alone)


def test_the_self_tests_pass_and_the_ends_are_known(
    case: tuple[ModelFolder, list[StageRunner]],
) -> None:
    _, stages = case
    for stage in stages:
        stage.self_test()
    assert [stage.takes_ids for stage in stages] == [True] + [False] * (len(stages) - 1)
    assert [stage.gives_logits for stage in stages] == [False] * (len(stages) - 1) + [True]
    assert len({stage.numerics for stage in stages}) == len(stages)


def test_a_stage_on_a_gpu_is_refused_with_what_to_do() -> None:
    folder = stage_folders(toy_model_folder(), 2)[0]
    with pytest.raises(StartError, match="stages run on CPU; set device to cpu or auto"):
        StageRunner(folder, device="cuda")
