"""The way that models run on a GPU, on a CPU: the same bits, whatever width a step is padded to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from agent.models import selftest
from agent.models.folder import ModelFolder
from agent.worker.cuda_way import with_graphs
from agent.worker.device_memory import HostMemory
from agent.worker.device_way import SPARE_POSITIONS, DeviceWay, step_widths
from agent.worker.filled_lanes import FilledLanes
from agent.worker.host_way import HostWay, Logits
from agent.worker.kv_cache import HostSlab, LaneShape, SavedLane
from agent.worker.provider import CPU_PROVIDER
from agent.worker.sessions import SessionOptions, open_session
from bus.errors import Internal
from tests.harness.models import toy_model_folder

LANES = 6
WINDOW = 40


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return toy_model_folder()


def new_slab(folder: ModelFolder) -> HostSlab:
    figures = folder.signature
    lane = LaneShape(
        figures.kv_heads, WINDOW + SPARE_POSITIONS, figures.head_dim, np.dtype(np.float32)
    )
    return HostSlab(2 * figures.layers, LANES, lane)


def new_way(folder: ModelFolder, slab: FilledLanes, *, graphs: bool = False) -> DeviceWay:
    session = open_session(folder.graph, [CPU_PROVIDER], SessionOptions())
    return DeviceWay(session, slab, folder.signature.vocab, HostMemory(), graphs=graphs)


def prompt(lane: int, tokens: int) -> list[int]:
    ids: list[int] = np.random.default_rng(lane).integers(0, 256, tokens).tolist()
    return ids


def lane_bits(slab: FilledLanes | HostSlab, lane: int, tokens: int) -> npt.NDArray[np.uint32]:
    return slab.read_lane(lane, tokens).data.view(np.uint32)


@pytest.mark.parametrize(
    ("lanes", "widths"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))]
)
def test_widths_are_powers_of_two_and_all_lanes(lanes: int, widths: tuple[int, ...]) -> None:
    assert step_widths(lanes) == widths


@pytest.mark.parametrize("batch", range(1, LANES + 1))
def test_steps_of_any_width_give_the_host_way_s_bits(folder: ModelFolder, batch: int) -> None:
    host_slab, slab = new_slab(folder), FilledLanes(new_slab(folder))
    session = open_session(folder.graph, [CPU_PROVIDER], SessionOptions())
    host, device = HostWay(session, host_slab, folder.signature), new_way(folder, slab)

    def through(way: HostWay | DeviceWay) -> list[Logits]:
        found = [way.run_chunk(lane, prompt(lane, 5 + lane), 0).copy() for lane in range(LANES)]
        for step in range(3):
            lengths = [6 + lane + step for lane in range(batch)]
            found.append(way.run_step([step + lane for lane in range(batch)], lengths).copy())
        found.append(way.run_chunk(LANES - 1, prompt(9, 7), 10 + 3 * (batch == LANES)).copy())
        return found

    for expected, got in zip(through(host), through(device), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_rows_that_pad_a_step_leave_their_lanes_as_they_were(folder: ModelFolder) -> None:
    slab = FilledLanes(new_slab(folder))
    way = new_way(folder, slab)
    for lane in range(LANES):
        # The last one is full to the window, and so is the copy.
        way.run_chunk(lane, prompt(lane, WINDOW if lane == LANES - 1 else 4 + lane), 0)
    slab.copy_lane(LANES - 1, 3, WINDOW)
    held = [4, 5, 6, WINDOW, 8, WINDOW]
    assert slab.filled == held
    before = [lane_bits(slab, lane, tokens).copy() for lane, tokens in enumerate(held)]
    for count in (1, 3, 5):
        way.run_step([7] * count, [tokens + 1 for tokens in held[:count]])
        for lane in range(count, LANES):
            np.testing.assert_array_equal(lane_bits(slab, lane, held[lane]), before[lane])
        for lane in range(count):
            slab.wrote(lane, held[lane])


def test_what_is_written_back_counts_as_filled(folder: ModelFolder) -> None:
    slab = FilledLanes(new_slab(folder))
    saved = SavedLane.empty(slab.layout, 9)
    slab.write_lane(2, saved, 9)
    assert slab.filled == [0, 0, 9, 0, 0, 0]


def test_warming_up_leaves_an_empty_slab_that_computes_the_same(folder: ModelFolder) -> None:
    warm, cold = (new_way(folder, FilledLanes(new_slab(folder))) for _ in range(2))
    warm.warm_up()
    for way in (warm, cold):
        way.run_chunk(0, prompt(0, 12), 0)
    np.testing.assert_array_equal(warm.run_step([3], [13]), cold.run_step([3], [13]))


def test_the_self_test_runs_beside_the_lanes(folder: ModelFolder) -> None:
    slab = FilledLanes(new_slab(folder))
    selftest.check(new_way(folder, slab), folder)
    assert not lane_bits(slab, 0, WINDOW).any()


def test_where_capturing_fails_steps_run_without_and_it_is_logged_once(
    folder: ModelFolder, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[bool] = []

    def way(graphs: bool) -> DeviceWay:
        tried.append(graphs)
        if graphs:
            raise Internal("this session cannot use the graph capture feature")
        return new_way(folder, FilledLanes(new_slab(folder)))

    assert not with_graphs(way).graphs
    assert tried == [True, False]
    assert [record.getMessage() for record in caplog.records] == ["cuda_graphs_off"]


def test_where_capturing_works_it_stays(folder: ModelFolder) -> None:
    way = with_graphs(lambda graphs: new_way(folder, FilledLanes(new_slab(folder)), graphs=graphs))
    assert way.graphs
    way.run_chunk(0, prompt(0, 4), 0)
    assert np.isfinite(way.run_step([1], [5])).all()
