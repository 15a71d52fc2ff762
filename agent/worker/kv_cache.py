"""Keys and values of all lanes: one slab for each layer and kind.

A lane is a row of `[lanes, kv_heads, max_len, head_dim]`. Runs bind a stretch of rows by address,
as input and as output at once, so nothing is copied from step to step. What stands in a lane
behind its tokens is left over and never read: attention ends at the length that a run is given.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bus.errors import ConfigInvalid

DEFAULT_LANES = 8
DEFAULT_KV_BYTES = 1 << 30

#: A lane that holds fewer tokens serves nobody.
MIN_LANE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class LaneShape:
    """One lane of one layer: `[kv_heads, max_len, head_dim]` of `dtype`."""

    kv_heads: int
    max_len: int
    head_dim: int
    dtype: np.dtype[Any]

    @property
    def lane_bytes(self) -> int:
        return self.kv_heads * self.max_len * self.head_dim * self.dtype.itemsize


class KvSlab(Protocol):
    """What a `ModelRunner` binds. `device` is ONNX Runtime's name of where it lives."""

    device: str
    lane: LaneShape
    lanes: int

    def address(self, layer_part: int, lane: int) -> int:
        """Where a lane of a layer's keys (even) or values (odd `layer_part`) begins."""

    def copy_lane(self, src: int, dst: int, tokens: int) -> None:
        """Make the first `tokens` tokens of lane `dst` equal those of `src`, bit by bit."""


class HostSlab:
    """A slab in this process's memory. Untouched pages cost nothing.

    Args:
        layer_parts: arrays to hold: keys and values of each layer.
        lanes: rows.
        lane: shape and type of a row.
    """

    device = "cpu"

    def __init__(self, layer_parts: int, lanes: int, lane: LaneShape) -> None:
        self.lane = lane
        self.lanes = lanes
        self.arrays: Sequence[npt.NDArray[Any]] = [
            _zeros((lanes, lane.kv_heads, lane.max_len, lane.head_dim), lane.dtype)
            for _ in range(layer_parts)
        ]
        self._bases = [array.ctypes.data for array in self.arrays]

    def address(self, layer_part: int, lane: int) -> int:
        return self._bases[layer_part] + lane * self.lane.lane_bytes

    def copy_lane(self, src: int, dst: int, tokens: int) -> None:
        for array in self.arrays:
            array[dst, :, :tokens] = array[src, :, :tokens]


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Zeros that take memory as they are written, page by page.

    numpy's own ask the kernel for huge pages: a head's stretch of a lane is shorter than one, so
    the first few tokens of each head would take the whole lane (measured for four lanes of 540
    tokens of SmolLM2: 515 MB against 117 MB, at the same speed).
    """
    size = int(np.prod(shape)) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def lane_tokens(*, window: int, kv_bytes: int, lanes: int, token_bytes: int) -> int:
    """How many tokens a lane holds: the model's window, or what the budget allows.

    Args:
        window: of the model, in tokens.
        kv_bytes: budget of all lanes together.
        lanes: 1 or more.
        token_bytes: keys and values of one token in all layers.

    Raises:
        ConfigInvalid: the budget is too small to serve anything.
    """
    tokens = min(window, kv_bytes // lanes // token_bytes)
    least = min(MIN_LANE_TOKENS, window)
    if tokens < least:
        raise ConfigInvalid(
            f"a KV budget of {kv_bytes} bytes leaves {tokens} tokens for each of {lanes} lanes; "
            f"give at least {least * lanes * token_bytes} bytes or fewer lanes",
            param="kv_bytes",
        )
    return tokens
