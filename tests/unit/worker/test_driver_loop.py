"""A driver's loop over a pipe in memory: what it says, and that it waits where it has to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.worker.driver import AWAY_S, DriverEngine
from agent.worker.driver_loop import DriverWorker
from agent.worker.executor import Executor
from agent.worker.loop import REPORT_S
from agent.worker.stage_runner import StageRunner
from bus.ids import GenerationId, unpack_ids
from bus.messages.worker import WORKER, Accepted, Cancel, Output, Pong, Stop
from bus.messages.worker_stages import (
    StageClose,
    StageFailed,
    StageOpen,
    StageOpened,
    StageUnit,
)
from tests.harness.engine_run import prompt_of, submit
from tests.harness.models import stage_folders, toy_model_folder
from tests.harness.stage_chain import open_stages

ORDER = StageOpen(chain=4, groups=2, lanes=4, window=128)
KV_BYTES = 1 << 22


@pytest.fixture(scope="module")
def stages() -> list[StageRunner]:
    return open_stages(stage_folders(toy_model_folder(), 2))


class StagePipe:
    """The agent's end: another stage answers, or does not, and waits are counted.

    Args:
        answer: what becomes of a unit of work; None is lost on the way.
        inbox: what the agent says.
    """

    def __init__(self, answer: Callable[[StageUnit], object | None], *inbox: object) -> None:
        self.now = 50.0
        self.inbox = list(inbox)
        self.sent: list[Any] = []
        self.waits: list[float | None] = []
        self._answer = answer

    def clock(self) -> float:
        return self.now

    def recv(self, timeout_s: float | None) -> bytes | None:
        if self.inbox:
            return WORKER.encode(self.inbox.pop(0))
        if timeout_s != 0.0:
            self.waits.append(timeout_s)
        if timeout_s is None or len(self.waits) > 8:
            return WORKER.encode(Stop())
        self.now += timeout_s
        return None

    def send(self, data: bytes) -> bool:
        message = WORKER.decode(data)
        self.sent.append(message)
        if isinstance(message, StageUnit) and (reply := self._answer(message)) is not None:
            self.inbox.append(reply)
        return True

    def wait_sendable(self, timeout_s: float) -> None:
        raise AssertionError("this pipe takes everything")

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]

    def ids(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for output in self.of(Output):
            for run in output.runs:
                found.setdefault(int(run.generation), []).extend(unpack_ids(run.ids))
        return found


def run(pipe: StagePipe, last: StageRunner) -> DriverEngine:
    engine = DriverEngine(last, kv_bytes=KV_BYTES, host_kv_bytes=KV_BYTES)
    DriverWorker(pipe, engine, pipe.clock).run()
    return engine


def executing(first: StageRunner) -> Callable[[StageUnit], object | None]:
    executor = Executor(first, kv_bytes=KV_BYTES, host_kv_bytes=KV_BYTES)
    executor.open(ORDER)

    def answer(unit: StageUnit) -> object | None:
        return executor.take(unit) or executor.turn()

    return answer


def test_a_chain_is_opened_and_serves(stages: list[StageRunner]) -> None:
    first, last = stages
    messages = [submit(i, prompt_of(30 + i, i), 9) for i in range(3)]
    pipe = StagePipe(executing(first), ORDER, *messages)
    run(pipe, last)
    (opened,) = pipe.of(StageOpened)
    assert (opened.chain, opened.window, opened.lanes, opened.code) == (4, 128, 4, "")
    assert len(pipe.of(Accepted)) == 3
    assert {number: len(ids) for number, ids in pipe.ids().items()} == {0: 9, 1: 9, 2: 9}
    assert pipe.waits[-1] is None, "with nothing to do it waits for ever"


def test_while_a_unit_is_away_it_waits_and_tells_each_second(stages: list[StageRunner]) -> None:
    pipe = StagePipe(lambda unit: None, ORDER, submit(1, prompt_of(30), 9))
    run(pipe, stages[1])
    assert len(pipe.of(StageUnit)) == 1
    assert pipe.waits
    assert all(wait is not None and 0.0 < wait <= REPORT_S for wait in pipe.waits)
    pongs = pipe.of(Pong)
    assert len(pongs) >= len(pipe.waits) - 2
    assert {pong.stats.phase for pong in pongs[1:]} == {"prefill"}
    assert AWAY_S > REPORT_S


def test_a_cancel_waits_for_the_unit_that_is_under_way(stages: list[StageRunner]) -> None:
    first, last = stages
    held: list[StageUnit] = []
    answer = executing(first)

    def slow(unit: StageUnit) -> object | None:
        if held:
            return answer(unit)
        held.append(unit)
        return Cancel(generation=GenerationId(1))

    pipe = StagePipe(slow, ORDER, submit(1, prompt_of(30), 9))
    engine = DriverEngine(last, kv_bytes=KV_BYTES, host_kv_bytes=KV_BYTES)
    worker = DriverWorker(pipe, engine, pipe.clock)
    worker.run()
    assert not pipe.of(Output)
    pipe.waits.clear()
    reply = answer(held[0])
    assert reply is not None
    pipe.inbox.append(reply)
    again = DriverWorker(pipe, engine, pipe.clock)
    again.run()
    (output,) = pipe.of(Output)
    (ended,) = output.runs
    assert (ended.finish.reason, len(unpack_ids(ended.ids))) == ("cancelled", 1)


def test_a_close_forgets_and_says_nothing(stages: list[StageRunner]) -> None:
    pipe = StagePipe(lambda unit: StageClose(chain=4), ORDER, submit(1, prompt_of(30), 9))
    engine = run(pipe, stages[1])
    assert engine.chain is None
    assert engine.idle
    assert not pipe.of(Output)
    assert not pipe.of(StageFailed)


def test_a_close_of_another_chain_changes_nothing(stages: list[StageRunner]) -> None:
    answer = executing(stages[0])
    message = submit(1, prompt_of(30), 9)
    pipe = StagePipe(answer, StageClose(chain=3), ORDER, message, StageClose(chain=5))
    assert run(pipe, stages[1]).chain == 4
    assert len(pipe.ids()[1]) == 9


def test_hidden_states_that_are_none_end_the_chain_with_the_reason(
    stages: list[StageRunner],
) -> None:
    def cut(unit: StageUnit) -> object | None:
        return StageUnit(chain=unit.chain, group=unit.group, unit=unit.unit, hidden=b"abc")

    pipe = StagePipe(cut, ORDER, submit(1, prompt_of(30), 9))
    engine = run(pipe, stages[1])
    (failed,) = pipe.of(StageFailed)
    assert (failed.chain, failed.code) == (4, "decode")
    assert "3 bytes of hidden states, and 30 tokens of 128 numbers" in failed.message
    assert engine.chain is None
    assert not pipe.of(Output)
