"""The lengths of chunks change no bit of keys, values and logits, up to the longest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from agent.models.folder import ModelFolder
from agent.worker.chunk_grid import FREE_HEAD_DIM
from agent.worker.model_runner import ModelRunner
from agent.worker.turns import TurnPacer
from tests.harness.models import smollm2_folder, toy_model_folder

TOKENS = 645


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((toy_model_folder, 1), id="toy"),
        pytest.param((toy_model_folder, 2), id="toy-2-threads"),
        pytest.param((smollm2_folder, 2), id="smollm2", marks=pytest.mark.model),
    ],
)
def runner(request: pytest.FixtureRequest) -> ModelRunner:
    make: Callable[[], ModelFolder]
    make, threads = request.param
    return ModelRunner(make(), device="cpu", lanes=1, kv_bytes=64 << 20, threads=threads)


def prefill(runner: ModelRunner, sizes: list[int]) -> tuple[bytes, bytes]:
    """What chunks leave in the lane, and the logits after the last."""
    high = 127 if runner.folder.signature.vocab < 1000 else 40_000
    ids = np.random.default_rng(0).integers(32, high, TOKENS).tolist()
    past, logits = 0, b""
    for size in sizes:
        logits = runner.prefill_chunk(0, ids[past : past + size], past).tobytes()
        past += size
    assert past == TOKENS
    return runner.slab.read_lane(0, TOKENS).data.tobytes(), logits


@pytest.mark.parametrize(
    "sizes",
    [
        [256, 256, 133],
        [2, 255, 256, 132],
        [200, 254, 189, 2],
        [255, 130, 256, 4],
        [16] * 40 + [5],
    ],
    ids=str,
)
def test_chunks_of_up_to_256_tokens_are_bit_equal(runner: ModelRunner, sizes: list[int]) -> None:
    assert runner.folder.signature.head_dim <= FREE_HEAD_DIM
    assert prefill(runner, sizes) == prefill(runner, [128] * 5 + [5])


@pytest.mark.parametrize("stop", [65, 129, 193, 257, TOKENS])
def test_a_single_row_behind_a_tile_is_kept_out_of_chunks(runner: ModelRunner, stop: int) -> None:
    """A prompt's first stretch ends a token behind a tile; the rest goes as it did before."""
    pacer = TurnPacer(long_chunks=True)
    pacer.chunk_rate = 1e6
    first: list[int] = []
    while sum(first) < stop:
        first.append(pacer.chunk_tokens(sum(first), stop, None, lone=True))
    behind = [120] * ((TOKENS - stop) // 120)
    if left := TOKENS - stop - sum(behind):
        behind.append(left)
    assert prefill(runner, first + behind) == prefill(runner, [128] * 5 + [5])
