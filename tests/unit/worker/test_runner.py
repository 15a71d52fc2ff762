"""What the worker's loop tells of its progress, over a pipe in memory and a clock that is set."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from agent.worker.engine import Engine
from agent.worker.loop import REPORT_S
from agent.worker.model_runner import ModelRunner
from agent.worker.runner import Worker
from bus.errors import Internal
from bus.ids import GenerationId, pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import UNASKED, WORKER, Cancel, Output, Ping, Pong, Submit
from tests.harness.memory_pipe import TURN_S, MemoryPipe
from tests.harness.models import toy_model_folder


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return ModelRunner(toy_model_folder(), device="cpu", lanes=2, kv_bytes=8 << 20, threads=1)


def submit(prompt: int, tokens: int) -> Submit:
    return Submit(
        generation=GenerationId(1),
        context=pack_ids(40 + number % 50 for number in range(prompt)),
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_new_tokens=tokens,
        prompt_tokens=prompt,
    )


def test_a_long_prefill_tells_each_second_how_many_chunks_it_has_done(runner: ModelRunner) -> None:
    # 16 chunks, which is 4.8 s of the test's clock without a token.
    pipe = MemoryPipe(replace(submit(2000, 1), qos=3))
    pongs = [(at, message) for at, message in pipe.serve(runner) if isinstance(message, Pong)]
    assert all(pong.nonce == UNASKED for _, pong in pongs)
    assert [pong.stats.phase for _, pong in pongs] == ["prefill"] * len(pongs)
    assert [pong.stats.steps for _, pong in pongs] == [0, 4, 8, 12]
    times = [at for at, _ in pongs]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(REPORT_S <= gap <= REPORT_S + TURN_S for gap in gaps)


def test_tokens_that_leave_are_report_enough(runner: ModelRunner) -> None:
    sent = [message for _, message in MemoryPipe(submit(5, 60)).serve(runner)]
    pongs = [message for message in sent if isinstance(message, Pong)]
    outputs = [message for message in sent if isinstance(message, Output)]
    assert len(pongs) == 1, "only that work begins"
    assert [output.stats.phase for output in outputs[:2]] == ["prefill", "decode"]
    assert outputs[-1].stats.phase == "idle", "with the finish, nothing is left to do"


def test_a_request_with_files_is_refused_by_name_and_others_run(runner: ModelRunner) -> None:
    with_files = replace(submit(5, 3), generation=GenerationId(2), files=("/files/a",))
    sent = [message for _, message in MemoryPipe(with_files, submit(5, 3)).serve(runner)]
    runs = [run for m in sent if isinstance(m, Output) for run in m.runs]
    (refused,) = [run for run in runs if run.generation == 2]
    assert refused.finish is not None
    assert (refused.finish.reason, refused.finish.error_code) == ("refused", "invalid")
    assert refused.finish.param == "blobs"
    assert [run.finish.reason for run in runs if run.finish] == ["refused", "length"]


def test_files_in_a_repeat_of_one_that_runs_are_no_end_of_it(runner: ModelRunner) -> None:
    again = replace(submit(5, 3), files=("/files/a",))
    sent = [message for _, message in MemoryPipe(submit(5, 3), again).serve(runner)]
    runs = [run for m in sent if isinstance(m, Output) for run in m.runs]
    assert [run.finish.reason for run in runs if run.finish] == ["length"]


def test_a_generation_whose_number_was_cancelled_at_once_ends_once(runner: ModelRunner) -> None:
    cancel = Cancel(generation=GenerationId(1))
    inbox = (submit(5, 3), cancel, submit(5, 3), cancel, submit(5, 9))
    sent = [message for _, message in MemoryPipe(*inbox).serve(runner)]
    runs = [run for m in sent if isinstance(m, Output) for run in m.runs]
    assert [run.finish.reason for run in runs if run.finish] == ["cancelled"]


def test_a_fault_with_a_long_text_is_told_in_a_message_that_can_be_read(
    runner: ModelRunner,
) -> None:
    engine = Engine(runner)
    pipe = MemoryPipe(submit(5, 3))
    worker = Worker(pipe, engine, pipe.clock)
    engine.submit(replace(submit(5, 3), generation=GenerationId(9)), 0.0)
    engine.scheduler.refuse(GenerationId(9), Internal("ONNX Runtime failed: " + "\u2603" * 3000))
    worker.run()
    runs = [run for _, m in pipe.sent if isinstance(m, Output) for run in m.runs]
    (told,) = [run.finish for run in runs if run.generation == 9]
    assert told is not None
    assert told.error_code == "internal"
    assert 400 < len(told.message) < 600


def test_an_idle_worker_answers_and_says_nothing_else(runner: ModelRunner) -> None:
    ((_, pong),) = MemoryPipe(Ping(nonce=5)).serve(runner)
    assert (pong.nonce, pong.stats.steps, pong.stats.phase) == (5, 0, "idle")


def test_a_ping_is_answered_with_the_prefixes_held(runner: ModelRunner) -> None:
    pipe = MemoryPipe(submit(200, 3))
    pipe.serve(runner)
    assert not any(m.prefixes for _, m in pipe.sent if isinstance(m, Pong)), "nobody asked"
    worker = Worker(pipe, engine := Engine(runner), pipe.clock)
    engine.submit(submit(200, 3), 0.0)
    while not engine.idle:
        engine.turn(0.0)
    pipe.inbox.append(WORKER.encode(Ping(nonce=5)))
    worker.run()
    _, pong = pipe.sent[-1]
    assert pong.nonce == 5
    assert [len(digest) for digest in pong.prefixes] == [16]
    assert pong.stats.kv_host_bytes == 202 * 1024
