"""Buffers in GPU memory, each with pinned memory here."""

from __future__ import annotations

import numpy as np

from agent.models.onnx_runtime import onnxruntime
from agent.worker.cuda_driver import CudaDriver
from agent.worker.device_memory import Buffer


class CudaMemory:
    """Buffers on the first GPU."""

    device = "cuda"

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver

    def buffer(self, size: int) -> Buffer:
        return _CudaBuffer(self._driver, size)


class _CudaBuffer:
    def __init__(self, driver: CudaDriver, size: int) -> None:
        self._driver = driver
        words = -(-size // 8)
        self._array = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            [words], np.int64, "cuda", 0
        )
        self.host = driver.pinned(words * 8)
        self.address: int = self._array.data_ptr()

    def push(self) -> None:
        self._driver.to_device(self.address, self.host.ctypes.data, self.host.nbytes)

    def pull(self, size: int) -> None:
        self._driver.to_host(self.host.ctypes.data, self.address, size)
