"""Operations on lanes and host memory, done in the scheduler's order."""

from __future__ import annotations

from collections.abc import Iterable

from agent.worker.host_kv import HostKv
from agent.worker.kv_cache import KvSlab, SavedLane
from agent.worker.work import (
    CopyPrefix,
    DropSaved,
    LaneOp,
    LoadLane,
    MoveLane,
    SaveLane,
    TakeRestored,
)
from bus.errors import Internal
from bus.log import EventLog

log = EventLog(__name__)

#: Of prefixes and preempted lanes: 11,650 tokens of SmolLM2.
DEFAULT_HOST_KV_BYTES = 512 << 20


class Transfers:
    """Owns the host memory beside a slab. Driven by the engine.

    Args:
        slab: the lanes.
        budget_bytes: of host memory.
    """

    def __init__(self, slab: KvSlab, budget_bytes: int) -> None:
        self._slab = slab
        self.host = HostKv(budget_bytes)
        #: What was read from files, for operations that will come.
        self.restored: dict[int, SavedLane] = {}

    def run(self, ops: Iterable[LaneOp]) -> list[LaneOp]:
        """Do all that can be done.

        Returns:
            Those that failed, and those that read what these should have written.
        """
        lost: list[LaneOp] = []
        broken: set[int] = set()
        for op in ops:
            if _reads(op) in broken or not self._try(op):
                lost.append(op)
                broken |= _writes(op)
            else:
                broken -= _writes(op)
        return lost

    def _try(self, op: LaneOp) -> bool:
        try:
            self._do(op)
        except Internal as error:
            log.warning("transfer_failed", op=op, error=error)
            return False
        return True

    def _do(self, op: LaneOp) -> None:
        match op:
            case MoveLane() | CopyPrefix():
                if op.tokens:
                    self._slab.copy_lane(op.src, op.dst, op.tokens)
            case SaveLane():
                self.host.save(op.entry, self._slab, op.lane, op.tokens)
            case LoadLane():
                self.host.load(op.entry, self._slab, op.lane, op.tokens)
            case TakeRestored():
                self.host.put(op.entry, self.restored.pop(op.entry))
            case DropSaved():
                if op.entry in self.host.entries():  # It could not be saved, then.
                    self.host.drop(op.entry)


def _reads(op: LaneOp) -> int | None:
    if isinstance(op, MoveLane | CopyPrefix):
        return op.src
    return op.lane if isinstance(op, SaveLane) else None


def _writes(op: LaneOp) -> set[int]:
    if isinstance(op, MoveLane | CopyPrefix):
        return {op.dst}
    return {op.lane} if isinstance(op, LoadLane) else set()
