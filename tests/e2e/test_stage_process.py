"""Stages in worker processes of their own give what the whole model gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.worker.model_runner import ModelRunner
from bus.ids import GenerationId, SessionId, unpack_ids
from bus.messages.parts import Finish, Segment
from bus.messages.worker import (
    Accepted,
    Cancel,
    Park,
    Parked,
    Ping,
    Pong,
    Rejected,
    Restore,
    Restored,
)
from bus.messages.worker_stages import StageFailed, StageUnit
from tests.harness.engine_run import GREEDY, alone, prompt_of, submit
from tests.harness.models import stage_folders, toy_model_folder
from tests.harness.stage_processes import StageProcesses

RULE = replace(GREEDY, logprobs=5)
DRIVER = 1
KV_BYTES = 8 << 20


@pytest.fixture
def stages(run_dir: Path) -> Iterator[StageProcesses]:
    folders = stage_folders(toy_model_folder(), 2)
    found = StageProcesses(folders, run_dir, "--kv-bytes", str(KV_BYTES), "--lanes", "4")
    yield found
    found.close()


@pytest.fixture(scope="module")
def whole() -> ModelRunner:
    return ModelRunner(toy_model_folder(), device="cpu", lanes=4, kv_bytes=KV_BYTES, threads=1)


def given(stages: StageProcesses) -> tuple[dict[int, list[int]], dict[int, Finish]]:
    """Ids and ends of all generations so far."""
    ids: dict[int, list[int]] = {}
    ends: dict[int, Finish] = {}
    for output in stages.outputs():
        for run in output.runs:
            ids.setdefault(int(run.generation), []).extend(unpack_ids(run.ids))
            if run.finish is not None:
                ends[int(run.generation)] = run.finish
    return ids, ends


def run_to_the_ends(stages: StageProcesses, count: int) -> dict[int, list[int]]:
    while len(given(stages)[1]) < count:
        stages.pass_on()
    return given(stages)[0]


def test_sessions_over_two_processes_are_as_on_the_whole_model(
    stages: StageProcesses, whole: ModelRunner
) -> None:
    first, last = stages.ready
    assert (first.kind, last.kind) == ("stage", "")
    assert first.stage is not None
    assert last.stage is not None
    assert first.stage.whole == last.stage.whole
    assert (first.stage.index, last.stage.index, last.stage.stages) == (0, 1, 2)
    assert (first.stage.first, first.stage.end, last.stage.end) == (0, 1, 2)
    assert (last.stage.model, last.stage.hidden) == ("toy", 128)
    opened = stages.open(5)
    assert (opened.code, opened.lanes) == ("", 4)
    assert opened.window == min(first.window_tokens, last.window_tokens)
    assert opened.numerics not in (first.numerics, last.numerics)
    messages = [submit(i, prompt_of(20 + 30 * i, i), 12 + i, RULE, exact=True) for i in range(8)]
    for message in messages:
        stages.send(DRIVER, message)
    ids = run_to_the_ends(stages, 8)
    assert ids == {i: alone(whole, message)[0] for i, message in enumerate(messages)}
    assert stages.stop() == [0, 0]


def test_no_chain_no_generation_and_a_closed_one_forgets_its_own(
    stages: StageProcesses, whole: ModelRunner
) -> None:
    request = submit(1, prompt_of(40), 60, RULE, exact=True)
    stages.send(DRIVER, request)
    rejected = stages.wait_for(DRIVER, Rejected)
    assert (rejected.generation, rejected.code) == (1, "model_not_ready")
    stages.send(0, request)
    assert stages.wait_for(0, Accepted).generation == 1
    assert stages.open(8).code == ""
    stages.send(DRIVER, request)
    while not given(stages)[0].get(1):
        stages.pass_on()
    stages.close_chain(8)
    stages.send(DRIVER, Ping(nonce=4))
    while stages.wait_for(DRIVER, Pong).nonce != 4:
        pass
    delivered = given(stages)[0][1]
    assert 0 < len(delivered) < 60
    assert stages.open(9).code == ""
    # What the worker did not give out is computed again, and no token comes twice.
    segments = (Segment(tokens=40), Segment(tokens=len(delivered), by_step=True))
    rest = submit(2, [*prompt_of(40), *delivered], 60 - len(delivered), RULE, segments=segments)
    stages.send(DRIVER, replace(rest, exact=True))
    ids = run_to_the_ends(stages, 1)
    assert ids[1] + ids[2] == alone(whole, request)[0]


def test_cancel_files_and_a_unit_of_nobody(stages: StageProcesses) -> None:
    stages.open(3)
    stages.send(DRIVER, submit(1, prompt_of(40), 4000, RULE))
    while not given(stages)[0].get(1):
        stages.pass_on()
    stages.send(DRIVER, Cancel(generation=GenerationId(1)))
    run_to_the_ends(stages, 1)
    assert given(stages)[1][1].reason == "cancelled"
    stages.send(DRIVER, Park(session=SessionId("s"), context=submit(1, [1], 1).context))
    assert "not parked in files" in stages.wait_for(DRIVER, Parked).message
    stages.send(DRIVER, Restore(session=SessionId("s"), context=submit(1, [1], 1).context))
    assert "not parked in files" in stages.wait_for(DRIVER, Restored).problem
    # Of an old chain, and of this one but not under way.
    for chain in (2, 3):
        stages.send(DRIVER, StageUnit(chain=chain, group=0, unit=b"?"))
    failed = stages.wait_for(DRIVER, StageFailed)
    assert (failed.chain, failed.code) == (3, "decode")
    stages.send(0, StageUnit(chain=3, group=0, unit=b"?"))
    assert stages.wait_for(0, StageFailed).chain == 3
    assert stages.open(4).code == ""
