"""Workers of stages that wait for each other are not hung, and those that are waited for may be."""

from __future__ import annotations

import pytest

from agent.proc_state import ProcessState
from agent.worker_watch import WatchPolicy, WorkerWatch
from bus.ids import GenerationId, NumericsId, WorkerIncarnation, pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Ready, Submit
from bus.messages.worker_stages import StageClose, StageFailed, StageOpen, StageUnit

UNIT = StageUnit(chain=5, group=0, unit=b"")
OPEN = StageOpen(chain=5, groups=2, lanes=8)
STILL = ProcessState(letter="S", cpu_s=1.0)


@pytest.fixture
def watch() -> WorkerWatch:
    made = WorkerWatch(WatchPolicy(stall_limit_s=60.0))
    made.started(0.0)
    made.heard(
        Ready(
            worker=WorkerIncarnation(1),
            window_tokens=64,
            lanes=8,
            kv_total_tokens=512,
            numerics=NumericsId("n"),
            tokenizer_digest=1,
            device="cpu",
            load_s=1.0,
        ),
        0.0,
    )
    made.sent(OPEN, 0.0)
    return made


def submit(watch: WorkerWatch) -> None:
    watch.sent(
        Submit(
            generation=GenerationId(1),
            context=pack_ids([1]),
            sampling=SamplingParams(),
            max_new_tokens=5,
            prompt_tokens=1,
        ),
        0.0,
    )


def hung_at(watch: WorkerWatch, until_s: float = 200.0) -> float | None:
    """When a worker whose process does nothing is given up."""
    now = 0.0
    while (at := watch.next_timeout()) is not None and at <= until_s:
        now = max(now, at)
        if watch.look(STILL, now) is not None:
            return now
    return None


def test_executor_that_does_not_do_its_unit_is_hung(watch: WorkerWatch) -> None:
    assert hung_at(watch) is None
    watch.sent(UNIT, 0.0)
    assert hung_at(watch) == pytest.approx(61.0, abs=1.0)


def test_executor_that_has_done_all_is_not_waited_for(watch: WorkerWatch) -> None:
    watch.sent(UNIT, 0.0)
    watch.sent(UNIT, 0.0)
    watch.heard(UNIT, 50.0)
    # A unit that it did is a step.
    assert hung_at(watch) == pytest.approx(111.0, abs=1.0)
    watch.heard(UNIT, 111.0)
    assert watch.next_timeout() is None


def test_driver_whose_unit_is_with_other_stages_is_not_waited_for(watch: WorkerWatch) -> None:
    submit(watch)
    watch.heard(UNIT, 0.0)
    assert hung_at(watch) is None


def test_driver_that_has_its_unit_back_is(watch: WorkerWatch) -> None:
    submit(watch)
    watch.heard(UNIT, 0.0)
    watch.sent(UNIT, 100.0)
    assert hung_at(watch, 300.0) == pytest.approx(161.0, abs=1.5)


def test_driver_that_sends_nothing_is_hung(watch: WorkerWatch) -> None:
    submit(watch)
    assert hung_at(watch) == pytest.approx(61.0, abs=1.0)


@pytest.mark.parametrize("ended", ["told", "failed"])
def test_nothing_waits_for_what_went_with_a_chain(watch: WorkerWatch, ended: str) -> None:
    submit(watch)
    watch.sent(UNIT, 0.0)
    if ended == "told":
        watch.sent(StageClose(chain=5), 0.0)
    else:
        watch.heard(StageFailed(chain=5, code="internal", message="no"), 0.0)
    assert watch.next_timeout() is None
    # What comes late of it changes nothing.
    watch.heard(UNIT, 1.0)
    watch.sent(UNIT, 1.0)
    assert watch.next_timeout() is None
