"""The few calls of the CUDA driver that a worker makes itself, by ctypes."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from bus.errors import Internal

_POINTER = ctypes.c_uint64
_SIZE = ctypes.c_size_t


class CudaDriver:
    """Copies to, from and in the memory of the first GPU. One thread uses it.

    Every copy is over when its call returns, also for streams that do not wait for it: ONNX
    Runtime computes in one of its own.

    Raises:
        Internal: the driver failed; any call may raise it.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Internal(f"the CUDA driver can not be loaded: {error}") from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        # The primary context is the one that ONNX Runtime computes in.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def to_device(self, device: int, host: int, size: int) -> None:
        """Copy `size` bytes from an address here to one there."""
        self._call("cuMemcpyHtoD_v2", _POINTER(device), ctypes.c_void_p(host), _SIZE(size))
        self.synchronize()

    def to_host(self, host: int, device: int, size: int) -> None:
        """Copy `size` bytes from an address there to one here."""
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(host), _POINTER(device), _SIZE(size))

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy `size` bytes there; `synchronize` when all are copied."""
        self._call("cuMemcpyDtoD_v2", _POINTER(to), _POINTER(source), _SIZE(size))

    def clear(self, device: int, size: int) -> None:
        """Write zeros there."""
        self._call("cuMemsetD8_v2", _POINTER(device), ctypes.c_ubyte(0), _SIZE(size))
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for all that was asked for."""
        self._call("cuCtxSynchronize")

    def pinned(self, size: int) -> npt.NDArray[np.uint8]:
        """`size` bytes here that the GPU reaches by itself; kept until the process ends."""
        address = ctypes.c_void_p()
        self._call("cuMemAllocHost_v2", ctypes.byref(address), _SIZE(size))
        memory = (ctypes.c_ubyte * size).from_address(address.value or 0)
        return np.frombuffer(memoryview(memory).cast("B"), np.uint8)

    def free_bytes(self) -> tuple[int, int]:
        """Bytes of the GPU's memory that are free, and that it has."""
        free, total = _SIZE(), _SIZE()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
            called = (text.value or b"unknown").decode(errors="replace")
            raise Internal(
                f"the CUDA driver's {name} failed with status {status} ({called}); restart the "
                "worker"
            )
