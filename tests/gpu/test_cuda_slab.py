"""The slab in GPU memory: lanes go to the host and come back bit by bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from agent.worker.cuda_driver import CudaDriver
from agent.worker.cuda_slab import CudaSlab
from agent.worker.host_kv import HostKv
from agent.worker.kv_cache import LaneShape, SavedLane

pytestmark = pytest.mark.gpu

LANE = LaneShape(kv_heads=3, max_len=10, head_dim=8, dtype=np.dtype(np.float16))
LAYER_PARTS = 4
LANES = 3


@pytest.fixture
def slab(gpu: str) -> CudaSlab:
    return CudaSlab(LAYER_PARTS, LANES, LANE, CudaDriver())


def any_bits(tokens: int, seed: int = 0) -> SavedLane:
    """Numbers, infinities and NaNs with payloads."""
    saved = SavedLane.empty(LANE.layout(LAYER_PARTS), tokens)
    raw = np.random.default_rng(seed).integers(0, 256, saved.nbytes, dtype=np.uint8)
    saved.data[...] = raw.view(saved.data.dtype).reshape(saved.data.shape)
    return saved


def bits(saved: SavedLane) -> npt.NDArray[np.uint16]:
    return saved.data.view(np.uint16)


@pytest.mark.parametrize("tokens", [1, 7, 10])
def test_a_lane_comes_back_bit_by_bit_and_nothing_else_changes(slab: CudaSlab, tokens: int) -> None:
    saved = any_bits(10)
    slab.write_lane(1, saved, tokens)
    whole = bits(slab.read_lane(1, 10))
    np.testing.assert_array_equal(whole[:, :, :tokens], bits(saved)[:, :, :tokens])
    assert not whole[:, :, tokens:].any()
    assert not bits(slab.read_lane(0, 10)).any()
    assert not bits(slab.read_lane(2, 10)).any()
    np.testing.assert_array_equal(bits(slab.read_lane(1, tokens)), whole[:, :, :tokens])


def test_a_copied_lane_is_the_same_on_the_host(slab: CudaSlab) -> None:
    slab.write_lane(0, any_bits(10), 10)
    slab.copy_lane(0, 2, 6)
    np.testing.assert_array_equal(bits(slab.read_lane(2, 6)), bits(any_bits(10))[:, :, :6])


def test_host_memory_keeps_lanes_of_the_device(slab: CudaSlab) -> None:
    host = HostKv(1 << 20)
    slab.write_lane(0, any_bits(10), 10)
    assert host.save(1, slab, 0, 9) == 9 * slab.layout.token_bytes
    slab.write_lane(0, any_bits(10, seed=1), 10)
    host.load(1, slab, 2, 9)
    np.testing.assert_array_equal(bits(slab.read_lane(2, 9)), bits(any_bits(10))[:, :, :9])
