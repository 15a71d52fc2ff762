"""An executor by itself: what it has for chains, and what it refuses and drops."""

from __future__ import annotations

import weakref
from array import array
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from agent.models.folder import ModelFolder
from agent.worker.executor import Executor
from agent.worker.hidden_states import unpack_hidden
from agent.worker.kv_cache import KvSlab
from agent.worker.stage_runner import StageLanes, StageRunner
from agent.worker.stage_unit import ChunkRun, StepRun, Unit, encode_unit
from agent.worker.work import DropSaved, LaneOp, LoadLane, SaveLane
from bus.messages.worker_stages import StageFailed, StageOpen, StageUnit
from tests.harness.engine_run import prompt_of, submit
from tests.harness.models import stage_folders, toy_model_folder
from tests.harness.stage_chain import StageChain

WINDOW = 128
#: Two lanes in each of two groups.
ORDER = StageOpen(chain=7, groups=2, lanes=4, window=WINDOW, host_tokens=200)


@pytest.fixture(scope="module")
def runner() -> StageRunner:
    return StageRunner(stage_folders(toy_model_folder(), 2)[0], device="cpu", threads=1)


def executor_of(runner: StageRunner, kv_tokens: int = 4 * WINDOW, host: int = 500) -> Executor:
    token_bytes = runner.token_bytes
    return Executor(runner, kv_bytes=kv_tokens * token_bytes, host_kv_bytes=host * token_bytes)


def unit(number: int, *ops: LaneOp, group: int = 0, past: int = 0) -> StageUnit:
    data = encode_unit(Unit(number, list(ops), ChunkRun(0, past, array("I", [65, 66, 67]))))
    return StageUnit(chain=7, group=group, unit=data)


def do(executor: Executor, message: StageUnit) -> StageUnit | StageFailed | None:
    return executor.take(message) or executor.turn()


def failure(executor: Executor, message: StageUnit) -> str:
    reply = do(executor, message)
    assert isinstance(reply, StageFailed)
    assert reply.chain == 7
    assert do(executor, unit(0)) is None, "the chain is closed"
    return f"{reply.code}: {reply.message}"


def test_a_chain_gets_what_was_asked_for_as_far_as_it_is_there(runner: StageRunner) -> None:
    opened = executor_of(runner).open(ORDER)
    assert (opened.code, opened.window, opened.lanes) == ("", WINDOW, 4)
    assert (opened.host_tokens, opened.numerics) == (200, runner.numerics)
    most = executor_of(runner).open(replace(ORDER, window=0, host_tokens=None))
    assert (most.window, most.host_tokens) == (WINDOW, 500)
    none = executor_of(runner, host=0).open(replace(ORDER, host_tokens=None))
    assert (none.code, none.host_tokens) == ("", 0)
    rich = executor_of(runner, kv_tokens=1 << 20).open(replace(ORDER, window=0))
    assert rich.window == runner.folder.signature.max_positions


def test_a_chain_that_does_not_fit_is_refused_with_both_figures(runner: StageRunner) -> None:
    small = executor_of(runner, kv_tokens=4 * 63)
    refused = small.open(ORDER)
    assert refused.code == "config_invalid"
    assert f"{64 * 4 * runner.token_bytes} bytes of keys and values" in refused.message
    assert f"and {63 * 4 * runner.token_bytes} of" in refused.message
    assert do(small, unit(0)) is None


def test_a_second_chain_gets_what_the_first_leaves(runner: StageRunner) -> None:
    executor = executor_of(runner, kv_tokens=4 * (WINDOW + 70))
    executor.open(ORDER)
    second = executor.open(replace(ORDER, chain=8, host_tokens=None))
    assert (second.window, second.host_tokens) == (70, 300)
    third = executor.open(replace(ORDER, chain=9))
    assert third.code == "config_invalid"
    assert f"0 of {4 * (WINDOW + 70) * runner.token_bytes} are free" in third.message
    executor.close(7)
    assert executor.open(replace(ORDER, chain=9)).window == WINDOW


def test_a_chain_that_is_opened_again_begins_anew(runner: StageRunner) -> None:
    executor = executor_of(runner)
    executor.open(ORDER)
    do(executor, unit(0, SaveLane(1, 5, 4)))
    assert executor.stats().kv_host_bytes == 4 * runner.token_bytes
    assert executor.open(ORDER).code == ""
    assert executor.stats().kv_host_bytes == 0
    assert isinstance(do(executor, unit(0)), StageUnit)


def test_units_give_hidden_states_and_copies_are_what_was_copied(runner: StageRunner) -> None:
    executor = executor_of(runner)
    executor.open(ORDER)
    width = runner.folder.signature.hidden
    first = do(executor, unit(0))
    assert isinstance(first, StageUnit)
    assert unpack_hidden(first.hidden, 3, width, "float32").shape == (3, width)
    step = StepRun(array("I", [70]), array("I", [4]))
    expected = do(executor, StageUnit(chain=7, group=0, unit=encode_unit(Unit(1, [], step))))
    # Saved, written over, and read again.
    ops: list[LaneOp] = [SaveLane(0, 1, 3)]
    do(executor, unit(2, *ops, past=9))
    do(executor, replace(unit(3), unit=encode_unit(Unit(3, [], ChunkRun(0, 0, array("I", [90]))))))
    ops = [LoadLane(1, 0, 3), DropSaved(1)]
    again = do(executor, StageUnit(chain=7, group=0, unit=encode_unit(Unit(4, ops, step))))
    assert isinstance(expected, StageUnit)
    assert isinstance(again, StageUnit)
    np.testing.assert_array_equal(
        np.frombuffer(again.hidden, "<f4"), np.frombuffer(expected.hidden, "<f4")
    )
    assert executor.stats().kv_host_bytes == 0
    stats = executor.stats()
    assert (stats.steps, stats.prefill_tokens, stats.decode_tokens) == (5, 7, 2)


def test_groups_count_their_units_by_themselves(runner: StageRunner) -> None:
    executor = executor_of(runner)
    executor.open(ORDER)
    for group in (0, 1):
        for number in range(3):
            assert isinstance(do(executor, unit(number, group=group)), StageUnit)


def test_what_is_out_of_order_closes_the_chain(runner: StageRunner) -> None:
    for wrong, why in (
        (unit(1), "unit 1 of group 0 came where 0 is due"),
        (unit(0, group=2), "group 2 is none of 2"),
        (replace(unit(0), unit=b""), "cut short"),
        (unit(0, LoadLane(9, 0, 4)), "could not be copied"),
        (unit(0, SaveLane(0, 1, 101)), "could not be copied"),
    ):
        executor = executor_of(runner)
        executor.open(ORDER)
        assert why in failure(executor, wrong)


def test_hidden_states_of_another_width_close_the_chain() -> None:
    last = StageRunner(stage_folders(toy_model_folder(), 2)[1], device="cpu", threads=1)
    executor = executor_of(last)
    executor.open(ORDER)
    said = failure(executor, replace(unit(0), hidden=bytes(3 * 64 * 4)))
    assert "768 bytes of hidden states, and 3 tokens of 128 numbers in float32 are 1536" in said


def test_no_more_units_wait_than_there_are_groups(runner: StageRunner) -> None:
    executor = executor_of(runner)
    executor.open(ORDER)
    assert executor.take(unit(0)) is None
    assert executor.take(unit(0, group=1)) is None
    flood = executor.take(unit(1))
    assert flood is not None
    assert "faster than" in flood.message
    assert executor.idle


def test_a_closed_chains_units_are_dropped(runner: StageRunner) -> None:
    executor = executor_of(runner)
    executor.open(ORDER)
    executor.take(unit(0))
    executor.close(7)
    assert executor.idle
    assert do(executor, unit(0)) is None
    executor.close(99)


class NotedRunner(StageRunner):
    """Knows which slabs it made are still there."""

    def __init__(self, folder: ModelFolder) -> None:
        super().__init__(folder, device="cpu", threads=1)
        self.made: list[weakref.ref[KvSlab]] = []

    def make_lanes(self, lanes: int, window: int) -> StageLanes:
        found = super().make_lanes(lanes, window)
        self.made.append(weakref.ref(found.slab))
        return found

    @property
    def there(self) -> int:
        return sum(slab() is not None for slab in self.made)


def test_a_closed_chain_leaves_no_memory_behind() -> None:
    first, last = (NotedRunner(folder) for folder in stage_folders(toy_model_folder(), 2))
    run = StageChain([first, last], Random(1))
    for chain in range(2, 5):
        run.submit(submit(chain, prompt_of(80), 20))
        for _ in range(40):
            run.turn()
        assert (first.there, last.there) == (2, 2)
        run.close(run.engine.chain or 0)
        assert (first.there, last.there) == (0, 0)
        run.open(chain)
