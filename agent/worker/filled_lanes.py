"""A slab that knows up to where each lane was written."""

from __future__ import annotations

from agent.worker.kv_cache import KvSlab, LaneShape, SavedLane


class FilledLanes:
    """A slab, and for each lane a length behind which nothing that counts stands.

    Runs tell what they write by `wrote`; copies are seen here. A lane that nobody has any more
    keeps its length.

    Attributes:
        filled: tokens of each lane.
    """

    def __init__(self, slab: KvSlab) -> None:
        self._slab = slab
        self.device = slab.device
        self.lane: LaneShape = slab.lane
        self.lanes = slab.lanes
        self.layout = slab.layout
        self.filled = [0] * slab.lanes

    def wrote(self, lane: int, tokens: int) -> None:
        """A lane holds `tokens` tokens now."""
        self.filled[lane] = tokens

    def address(self, layer_part: int, lane: int) -> int:
        return self._slab.address(layer_part, lane)

    def copy_lane(self, src: int, dst: int, tokens: int) -> None:
        self._slab.copy_lane(src, dst, tokens)
        self.filled[dst] = tokens

    def read_lane(self, lane: int, tokens: int) -> SavedLane:
        return self._slab.read_lane(lane, tokens)

    def write_lane(self, lane: int, saved: SavedLane, tokens: int) -> None:
        self._slab.write_lane(lane, saved, tokens)
        self.filled[lane] = tokens
