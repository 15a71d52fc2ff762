"""Memory of a device that a run reads its inputs from and writes its logits to."""

from __future__ import annotations

import ctypes
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Buffer(Protocol):
    """The same bytes here and on the device, as of the last copy.

    Attributes:
        host: the bytes here, to read and write.
        address: of the first byte on the device.
    """

    host: npt.NDArray[np.uint8]
    address: int

    def push(self) -> None:
        """Make the device's bytes those here."""

    def pull(self, size: int) -> None:
        """Make the first `size` bytes here those of the device."""


class DeviceMemory(Protocol):
    """Where buffers come from. `device` is ONNX Runtime's name of it."""

    device: str

    def buffer(self, size: int) -> Buffer:
        """`size` bytes, aligned for any type."""


class HostMemory:
    """A device that is the host: the device's way of running, on a CPU."""

    device = "cpu"

    def buffer(self, size: int) -> Buffer:
        return _HostBuffer(size)


class _HostBuffer:
    def __init__(self, size: int) -> None:
        self.host: npt.NDArray[np.uint8] = np.zeros(_words(size), np.int64).view(np.uint8)
        self._far: npt.NDArray[np.uint8] = np.zeros(_words(size), np.int64).view(np.uint8)
        self.address: int = self._far.ctypes.data

    def push(self) -> None:
        ctypes.memmove(self.address, self.host.ctypes.data, self.host.nbytes)

    def pull(self, size: int) -> None:
        ctypes.memmove(self.host.ctypes.data, self.address, size)


def _words(size: int) -> int:
    return -(-size // 8)
