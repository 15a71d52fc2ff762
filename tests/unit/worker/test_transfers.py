"""Operations on lanes and host memory, in order, and what follows from one that fails."""

from __future__ import annotations

import numpy as np
import pytest

from agent.worker.kv_cache import HostSlab, LaneShape
from agent.worker.transfers import Transfers
from agent.worker.work import CopyPrefix, DropSaved, LaneOp, LoadLane, MoveLane, SaveLane

TOKEN_BYTES = 4


@pytest.fixture
def slab() -> HostSlab:
    made = HostSlab(1, 4, LaneShape(1, 8, 1, np.dtype(np.float32)))
    for lane in range(4):
        made.arrays[0][lane, 0, :, 0] = 10 * lane + np.arange(8)
    return made


def cells(slab: HostSlab, lane: int, tokens: int = 3) -> list[float]:
    found: list[float] = slab.arrays[0][lane, 0, :tokens, 0].tolist()
    return found


def test_they_are_done_in_their_order(slab: HostSlab) -> None:
    transfers = Transfers(slab, 100)
    lost = transfers.run(
        [SaveLane(1, 5, 3), MoveLane(2, 1, 3), LoadLane(5, 0, 2), CopyPrefix(1, 3, 1), DropSaved(5)]
    )
    assert lost == []
    assert cells(slab, 0) == [10.0, 11.0, 2.0]
    assert cells(slab, 1) == [20.0, 21.0, 22.0]
    assert cells(slab, 3) == [20.0, 31.0, 32.0]
    assert transfers.host.nbytes == 0


def test_what_reads_a_lane_that_failed_fails_too(slab: HostSlab) -> None:
    transfers = Transfers(slab, 2 * TOKEN_BYTES)
    ops: list[LaneOp] = [
        SaveLane(1, 5, 3),  # more than the budget
        LoadLane(5, 0, 3),
        CopyPrefix(0, 2, 3),
        MoveLane(1, 0, 3),  # lane 0 is whole again
        CopyPrefix(0, 3, 3),
        DropSaved(5),
    ]
    assert transfers.run(ops) == ops[:3]
    assert cells(slab, 3) == [10.0, 11.0, 12.0]
    assert cells(slab, 2) == [20.0, 21.0, 22.0]


def test_moving_a_lane_that_holds_nothing_yet_copies_nothing(slab: HostSlab) -> None:
    assert Transfers(slab, 0).run([MoveLane(3, 0, 0)]) == []
    assert cells(slab, 0) == [0.0, 1.0, 2.0]
