"""Saved lanes: the same bits again, under a budget exact to the byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agent.worker.host_kv import HostKv
from agent.worker.kv_cache import HostSlab, LaneShape
from bus.errors import Internal
from tests.harness.memory_use import anonymous_bytes

TOKEN_BYTES = 4 * 2 * 4 * 4  # layer parts, heads, head_dim, float32


def slab(dtype: type[np.generic] = np.float32, max_len: int = 5, lanes: int = 3) -> HostSlab:
    made = HostSlab(4, lanes, LaneShape(2, max_len, 4, np.dtype(dtype)))
    rng = np.random.default_rng(3)
    for array in made.arrays:
        # Any bits at all: numbers, infinities, NaNs with payloads.
        raw = rng.integers(0, 256, array.nbytes, dtype=np.uint8)
        array[...] = raw.view(array.dtype).reshape(array.shape)
    return made


def bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_a_lane_comes_back_bit_by_bit_and_nothing_else_changes(
    dtype: type[np.generic], tokens: int
) -> None:
    source, target = slab(dtype), slab(dtype, max_len=7)
    before = [array.copy() for array in target.arrays]
    host = HostKv(10_000)
    host.save(1, source, 2, tokens)
    host.load(1, target, 0, tokens)
    for got, old, want in zip(target.arrays, before, source.arrays, strict=True):
        np.testing.assert_array_equal(bits(got[0, :, :tokens]), bits(want[2, :, :tokens]))
        np.testing.assert_array_equal(bits(got[0, :, tokens:]), bits(old[0, :, tokens:]))
        np.testing.assert_array_equal(bits(got[1:]), bits(old[1:]))


def test_fewer_tokens_than_were_saved_can_be_loaded() -> None:
    source, target = slab(), slab()
    host = HostKv(10_000)
    host.save(1, source, 0, 5)
    target.arrays[0][1] = 0.0
    host.load(1, target, 1, 2)
    np.testing.assert_array_equal(
        bits(target.arrays[0][1, :, :2]), bits(source.arrays[0][0, :, :2])
    )
    assert not target.arrays[0][1, :, 2:].any()


def test_a_saved_lane_does_not_change_with_the_slab() -> None:
    source = slab()
    host = HostKv(10_000)
    host.save(1, source, 0, 5)
    want = bits(source.arrays[3][0]).copy()
    source.arrays[3][...] = 0.0
    np.testing.assert_array_equal(bits(host.get(1).data[3]), want)


def test_accounts_are_exact_to_the_byte() -> None:
    host = HostKv(8 * TOKEN_BYTES)
    assert host.save(1, slab(), 0, 3) == 3 * TOKEN_BYTES
    assert host.save(2, slab(), 0, 5) == 5 * TOKEN_BYTES
    assert host.nbytes == host.budget_bytes
    with pytest.raises(Internal, match="does not fit"):
        host.save(3, slab(), 0, 1)
    host.drop(1)
    assert host.nbytes == 5 * TOKEN_BYTES
    host.put(3, slab().read_lane(1, 3))
    assert host.nbytes == 8 * TOKEN_BYTES
    assert host.entries() == {2, 3}


def test_wrong_ids_lanes_and_lengths_are_faults_of_the_caller() -> None:
    host, source = HostKv(10_000), slab()
    host.save(1, source, 0, 2)
    with pytest.raises(Internal, match="exists"):
        host.save(1, source, 0, 2)
    for tokens, lane in ((0, 0), (6, 0), (1, 3), (1, -1)):
        with pytest.raises(Internal, match="copied"):
            host.save(2, source, lane, tokens)
    with pytest.raises(Internal, match="copied"):
        host.load(1, source, 0, 3)
    with pytest.raises(Internal, match="no saved lane"):
        host.load(9, source, 0, 1)
    with pytest.raises(Internal, match="no saved lane"):
        host.drop(9)
    assert host.nbytes == 2 * TOKEN_BYTES


def test_another_layout_is_refused() -> None:
    host = HostKv(10_000)
    host.save(1, slab(np.float32), 0, 2)
    with pytest.raises(Internal, match="does not fit a slab"):
        host.load(1, slab(np.float16), 0, 2)


def test_memory_goes_back_when_an_entry_is_dropped() -> None:
    lane = LaneShape(kv_heads=2, max_len=2048, head_dim=64, dtype=np.dtype(np.float32))
    source = HostSlab(16, 1, lane)  # 16 MiB a lane
    for array in source.arrays:
        array[...] = 1.0
    host = HostKv(64 << 20)
    before = anonymous_bytes()
    for round_ in range(20):
        for entry in range(3):
            # Of many sizes, as lanes have.
            host.save(entry, source, 0, 2048 - 97 * ((round_ + entry) % 7))
        assert anonymous_bytes() - before < host.nbytes + (8 << 20)
        for entry in range(3):
            host.drop(entry)
    assert anonymous_bytes() - before < 8 << 20
