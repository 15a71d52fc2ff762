"""The slab: addresses, copies, and how long a lane may be."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from agent.worker.kv_cache import HostSlab, LaneShape, lane_tokens
from bus.errors import ConfigInvalid
from tests.harness.memory_use import anonymous_bytes

LANE = LaneShape(kv_heads=2, max_len=5, head_dim=4, dtype=np.dtype(np.float32))


def filled(dtype: type[np.generic] = np.float32) -> HostSlab:
    slab = HostSlab(4, 3, LaneShape(2, 5, 4, np.dtype(dtype)))
    for part, array in enumerate(slab.arrays):
        array[...] = np.arange(array.size).reshape(array.shape) + 1000 * part
    return slab


def test_an_address_is_where_the_lane_begins() -> None:
    slab = filled()
    for part in range(4):
        for lane in range(3):
            value = ctypes.c_float.from_address(slab.address(part, lane)).value
            assert value == slab.arrays[part][lane, 0, 0, 0]


def test_the_slab_begins_on_a_cache_line_and_is_dense() -> None:
    for array in filled().arrays:
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
    assert LANE.lane_bytes == 2 * 5 * 4 * 4


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_copying_a_lane_is_exact_and_touches_nothing_else(dtype: type[np.generic]) -> None:
    slab = filled(dtype)
    before = [array.copy() for array in slab.arrays]
    slab.copy_lane(0, 2, 3)
    for array, old in zip(slab.arrays, before, strict=True):
        np.testing.assert_array_equal(array[2, :, :3], old[0, :, :3])
        np.testing.assert_array_equal(array[2, :, 3:], old[2, :, 3:])
        np.testing.assert_array_equal(array[:2], old[:2])


def test_a_lane_holds_the_window_or_what_the_budget_allows() -> None:
    # SmolLM2: 30 layers of 3 heads of 64, keys and values, float32: 46,080 bytes a token.
    assert lane_tokens(window=2048, kv_bytes=1 << 30, lanes=8, token_bytes=46_080) == 2048
    assert lane_tokens(window=8192, kv_bytes=1 << 30, lanes=8, token_bytes=46_080) == 2912


def test_a_budget_that_serves_nobody_is_refused_with_the_least_that_does() -> None:
    with pytest.raises(ConfigInvalid, match="23592960"):  # 64 tokens * 8 lanes * 46,080 bytes
        lane_tokens(window=8192, kv_bytes=1 << 20, lanes=8, token_bytes=46_080)


def test_a_slab_takes_memory_only_where_it_is_written() -> None:
    lane = LaneShape(kv_heads=4, max_len=4096, head_dim=64, dtype=np.dtype(np.float32))
    before = anonymous_bytes()
    slab = HostSlab(16, 8, lane)  # 16 * 8 * 4 MiB = 512 MiB
    for array in slab.arrays:
        array[:, :, :16] = 1.0  # one page of each head: 2 MiB in all
    assert anonymous_bytes() - before < 32 << 20
