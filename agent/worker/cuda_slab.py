"""The KV slab in GPU memory: arrays are ONNX Runtime's, copies are the CUDA driver's.

Not run in tests without a GPU; kept to what the CUDA path needs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from agent.models.onnx_runtime import onnxruntime
from agent.worker.kv_cache import LaneShape, SavedLane, check_stretch
from bus.errors import Internal


class CudaSlab:
    """A slab on the first GPU.

    Args:
        layer_parts: arrays to hold: keys and values of each layer.
        lanes: rows.
        lane: shape and type of a row.
    """

    device = "cuda"

    def __init__(self, layer_parts: int, lanes: int, lane: LaneShape) -> None:
        self.lane = lane
        self.lanes = lanes
        self.layout = lane.layout(layer_parts)
        shape = [lanes, lane.kv_heads, lane.max_len, lane.head_dim]
        self._arrays = [
            onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, lane.dtype, "cuda", 0)
            for _ in range(layer_parts)
        ]
        self._bases: list[int] = [array.data_ptr() for array in self._arrays]
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._hold_context()
        for base in self._bases:
            # Whatever lay there could be a NaN, which a weight of zero does not hide.
            self._check(
                self._driver.cuMemsetD8_v2(
                    ctypes.c_uint64(base),
                    ctypes.c_ubyte(0),
                    ctypes.c_size_t(lanes * lane.lane_bytes),
                )
            )

    def address(self, layer_part: int, lane: int) -> int:
        return self._bases[layer_part] + lane * self.lane.lane_bytes

    def copy_lane(self, src: int, dst: int, tokens: int) -> None:
        # Whole heads: one copy a layer instead of one a head; GPU memory is fast enough for that.
        for part in range(len(self._bases)):
            self._check(
                self._driver.cuMemcpyDtoD_v2(
                    ctypes.c_uint64(self.address(part, dst)),
                    ctypes.c_uint64(self.address(part, src)),
                    ctypes.c_size_t(self.lane.lane_bytes),
                )
            )
        self._check(self._driver.cuCtxSynchronize())

    def read_lane(self, lane: int, tokens: int) -> SavedLane:
        check_stretch(self, lane, tokens)
        saved = SavedLane.empty(self.layout, tokens)
        for host, device, size in self._stretches(lane, saved, tokens):
            self._check(
                self._driver.cuMemcpyDtoH_v2(
                    ctypes.c_void_p(host), ctypes.c_uint64(device), ctypes.c_size_t(size)
                )
            )
        return saved

    def write_lane(self, lane: int, saved: SavedLane, tokens: int) -> None:
        check_stretch(self, lane, tokens, saved)
        for host, device, size in self._stretches(lane, saved, tokens):
            self._check(
                self._driver.cuMemcpyHtoD_v2(
                    ctypes.c_uint64(device), ctypes.c_void_p(host), ctypes.c_size_t(size)
                )
            )
        self._check(self._driver.cuCtxSynchronize())

    def _stretches(
        self, lane: int, saved: SavedLane, tokens: int
    ) -> Iterator[tuple[int, int, int]]:
        """Each head of each array: its address on the host, on the device, and its bytes."""
        token_bytes = self.lane.head_dim * self.lane.dtype.itemsize
        for part in range(len(self._bases)):
            for head in range(self.lane.kv_heads):
                device = self.address(part, lane) + head * self.lane.max_len * token_bytes
                yield saved.data[part, head].ctypes.data, device, tokens * token_bytes

    def _hold_context(self) -> None:
        """Make the primary context, which ONNX Runtime computes in, this thread's."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDeviceGet(ctypes.byref(device), 0))
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._check(self._driver.cuCtxSetCurrent(context))

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise Internal(f"the CUDA driver failed with status {status}; restart the worker")
