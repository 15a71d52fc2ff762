"""Buffers that are here and on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from agent.worker.cuda_driver import CudaDriver
from agent.worker.cuda_memory import CudaMemory

pytestmark = pytest.mark.gpu


def test_what_is_pushed_comes_back_when_pulled(gpu: str) -> None:
    buffer = CudaMemory(CudaDriver()).buffer(21)
    wanted = np.arange(buffer.host.nbytes, dtype=np.uint8)
    buffer.host[:] = wanted
    buffer.push()
    buffer.host[:] = 0
    buffer.pull(21)
    np.testing.assert_array_equal(buffer.host[:21], wanted[:21])
    assert not buffer.host[21:].any()


def test_the_driver_tells_its_memory(gpu: str) -> None:
    free, total = CudaDriver().free_bytes()
    assert 0 < free <= total
