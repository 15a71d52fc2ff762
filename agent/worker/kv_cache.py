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

from bus.errors import ConfigInvalid, Internal

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

    def layout(self, layer_parts: int) -> LaneLayout:
        """The layout of saved lanes, which does not depend on how long a lane may be."""
        return LaneLayout(layer_parts, self.kv_heads, self.head_dim, self.dtype.name)


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """What must be equal so that the bytes of one slab's lane fit into another's."""

    layer_parts: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        return self.layer_parts * self.kv_heads * self.head_dim * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class SavedLane:
    """A copy of a lane's first tokens: `[layer_parts, kv_heads, tokens, head_dim]`, dense."""

    layout: LaneLayout
    data: npt.NDArray[Any]

    @classmethod
    def empty(cls, layout: LaneLayout, tokens: int) -> SavedLane:
        """Room for `tokens` tokens, in memory that goes back to the system with the object.

        Raises:
            Internal: the system has no memory.
        """
        shape = (layout.layer_parts, layout.kv_heads, tokens, layout.head_dim)
        try:
            return cls(layout, _zeros(shape, np.dtype(layout.dtype), huge_pages=True))
        except OSError as error:
            raise Internal(f"no memory to save {tokens} tokens: {error.strerror}") from error

    @property
    def tokens(self) -> int:
        return int(self.data.shape[2])

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class KvSlab(Protocol):
    """What a `ModelRunner` binds. `device` is ONNX Runtime's name of where it lives."""

    device: str
    lane: LaneShape
    lanes: int
    layout: LaneLayout

    def address(self, layer_part: int, lane: int) -> int:
        """Where a lane of a layer's keys (even) or values (odd `layer_part`) begins."""

    def copy_lane(self, src: int, dst: int, tokens: int) -> None:
        """Make the first `tokens` tokens of lane `dst` equal those of `src`, bit by bit."""

    def read_lane(self, lane: int, tokens: int) -> SavedLane:
        """A copy in host memory of the first `tokens` tokens of a lane.

        Raises:
            Internal: there is no such stretch.
        """

    def write_lane(self, lane: int, saved: SavedLane, tokens: int) -> None:
        """Make the first `tokens` tokens of a lane those of a saved one, bit by bit.

        Raises:
            Internal: there is no such stretch, or the layouts differ.
        """


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
        self.layout = lane.layout(layer_parts)
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

    def read_lane(self, lane: int, tokens: int) -> SavedLane:
        check_stretch(self, lane, tokens)
        saved = SavedLane.empty(self.layout, tokens)
        for part, array in enumerate(self.arrays):
            saved.data[part] = array[lane, :, :tokens]
        return saved

    def write_lane(self, lane: int, saved: SavedLane, tokens: int) -> None:
        check_stretch(self, lane, tokens, saved)
        for part, array in enumerate(self.arrays):
            array[lane, :, :tokens] = saved.data[part, :, :tokens]


def check_stretch(slab: KvSlab, lane: int, tokens: int, saved: SavedLane | None = None) -> None:
    """See that tokens can be copied between a lane and a saved one.

    Raises:
        Internal: they can not.
    """
    longest = min(slab.lane.max_len, slab.lane.max_len if saved is None else saved.tokens)
    if not (0 <= lane < slab.lanes and 1 <= tokens <= longest):
        raise Internal(
            f"{tokens} tokens of lane {lane} can not be copied: at most {longest} are there"
        )
    if saved is not None and saved.layout != slab.layout:
        raise Internal(f"a lane saved as {saved.layout} does not fit a slab of {slab.layout}")


def _zeros(
    shape: tuple[int, ...], dtype: np.dtype[Any], *, huge_pages: bool = False
) -> npt.NDArray[Any]:
    """Zeros that take memory as they are written, page by page.

    A slab has no huge pages, for which numpy's own ask: a head's stretch of a lane is shorter than
    one, so the first few tokens of each head would take the whole lane (measured for four lanes of
    540 tokens of SmolLM2: 515 MB against 117 MB, at the same speed).
    """
    size = int(np.prod(shape)) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = "MADV_HUGEPAGE" if huge_pages else "MADV_NOHUGEPAGE"
    if hasattr(mmap, advice):
        memory.madvise(getattr(mmap, advice))
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
