"""Stages of real models give the whole model's logits bit by bit, at both accuracy levels."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.models.folder import ModelFolder
from agent.models.selftest import check, open_session
from agent.models.split import split_model
from agent.models.stages import even_stages
from tests.harness.models import (
    gemma3_float_folder,
    gemma3_folder,
    smollm2_exact_folder,
    smollm2_folder,
)
from tests.harness.reference import Floats
from tests.harness.stage_run import StageRun

pytestmark = pytest.mark.model

#: Lanes of a step, of which each has its own length; prompts are fed in chunks of `CHUNK`, whose
#: last `ROWS` logits are compared.
LENGTHS, CHUNK, ROWS, ROOM = (3, 25, 44), 24, 3, 64
STEPS = 3
MODELS = [smollm2_folder, smollm2_exact_folder, gemma3_folder]
#: Takes as long as all others: `make stages-long`.
if "SUPERFLUID_TEST_LONG" in os.environ:
    MODELS.append(gemma3_float_folder)


@pytest.mark.parametrize("make", MODELS)
def test_chunks_and_ragged_steps_are_the_same_bits(
    tmp_path: Path, make: Callable[[], ModelFolder]
) -> None:
    whole = make()
    expected = results([whole])
    assert all(np.isfinite(each).all() for each in expected)
    for stages in (2, 3):
        chosen = even_stages(whole.signature.layers, stages)
        try:
            parts = split_model(whole, tmp_path, chosen)
            for part in parts if stages == 2 else ():
                check(open_session(part.graph), part)
            for one, other in zip(expected, results(parts), strict=True):
                np.testing.assert_array_equal(one, other)
        finally:
            # they are large
            for folder in tmp_path.iterdir():
                shutil.rmtree(folder)


def prompt(lane: int, length: int) -> list[int]:
    """Ids of no meaning, other ones for each lane."""
    return [300 + (97 * lane + 31 * place * place) % 20_000 for place in range(length)]


def results(folders: list[ModelFolder]) -> list[Floats]:
    """Logits of all chunks, then of steps of the lanes, whose choices are fed back."""
    run = StageRun(folders, lanes=len(LENGTHS), room=ROOM, rows=ROWS)
    found: list[Floats] = []
    latest = []
    for lane, length in enumerate(LENGTHS):
        ids = prompt(lane, length)
        found += [
            run.prefill(lane, ids[start : start + CHUNK], start)
            for start in range(0, length, CHUNK)
        ]
        latest.append(int(found[-1][-1].argmax()))
    for step in range(1, STEPS + 1):
        found.append(run.decode(latest, [length + step for length in LENGTHS]))
        latest = [int(row.argmax()) for row in found[-1]]
    return found
