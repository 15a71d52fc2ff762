"""The KV slab in GPU memory: arrays are ONNX Runtime's, copies are the CUDA driver's."""

from __future__ import annotations

from collections.abc import Iterator

from agent.models.onnx_runtime import onnxruntime
from agent.worker.cuda_driver import CudaDriver
from agent.worker.kv_cache import LaneShape, SavedLane, check_stretch
from bus.errors import StartError


class CudaSlab:
    """A slab on the first GPU.

    Args:
        layer_parts: arrays to hold: keys and values of each layer.
        lanes: rows.
        lane: shape and type of a row.
        driver: copies.

    Raises:
        StartError: the GPU has no room.
    """

    device = "cuda"

    def __init__(self, layer_parts: int, lanes: int, lane: LaneShape, driver: CudaDriver) -> None:
        self.lane = lane
        self.lanes = lanes
        self.layout = lane.layout(layer_parts)
        shape = [lanes, lane.kv_heads, lane.max_len, lane.head_dim]
        try:
            self._arrays = [
                onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, lane.dtype.type, "cuda", 0)
                for _ in range(layer_parts)
            ]
        except Exception as error:  # ONNX Runtime's share no narrower base
            size = layer_parts * lanes * lane.lane_bytes
            raise StartError(
                f"the GPU gave no {size} bytes for keys and values: {error}; take less kv_bytes or "
                "fewer lanes in [worker]"
            ) from error
        self._bases: list[int] = [array.data_ptr() for array in self._arrays]
        self._driver = driver
        for base in self._bases:
            # Whatever lay there could be a NaN, which a weight of zero does not hide.
            driver.clear(base, lanes * lane.lane_bytes)

    def address(self, layer_part: int, lane: int) -> int:
        return self._bases[layer_part] + lane * self.lane.lane_bytes

    def copy_lane(self, src: int, dst: int, tokens: int) -> None:
        # Whole heads: one copy a layer instead of one a head; GPU memory is fast enough for that.
        for part in range(len(self._bases)):
            self._driver.copy(
                self.address(part, dst), self.address(part, src), self.lane.lane_bytes
            )
        self._driver.synchronize()

    def read_lane(self, lane: int, tokens: int) -> SavedLane:
        check_stretch(self, lane, tokens)
        saved = SavedLane.empty(self.layout, tokens)
        for host, device, size in self._stretches(lane, saved, tokens):
            self._driver.to_host(host, device, size)
        return saved

    def write_lane(self, lane: int, saved: SavedLane, tokens: int) -> None:
        check_stretch(self, lane, tokens, saved)
        for host, device, size in self._stretches(lane, saved, tokens):
            self._driver.to_device(device, host, size)

    def _stretches(
        self, lane: int, saved: SavedLane, tokens: int
    ) -> Iterator[tuple[int, int, int]]:
        """Each head of each array: its address on the host, on the device, and its bytes."""
        token_bytes = self.lane.head_dim * self.lane.dtype.itemsize
        for part in range(len(self._bases)):
            for head in range(self.lane.kv_heads):
                device = self.address(part, lane) + head * self.lane.max_len * token_bytes
                yield saved.data[part, head].ctypes.data, device, tokens * token_bytes
