"""Exactness over the toy model: ids are the same whatever happens beside and to a generation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.models.folder import ModelFolder
from agent.worker.model_runner import ModelRunner
from bus.ids import GenerationId
from bus.messages.parts import Segment
from bus.messages.sampling import SamplingParams
from tests.harness.engine_run import GREEDY, EngineRun, alone, prompt_of, submit
from tests.harness.models import toy_model_folder

LANES = 3
KV_BYTES = 16 << 20
SEEDED = SamplingParams(
    temperature=1.1,
    top_p=0.95,
    seed=7,
    ignore_eos=True,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    logprobs=4,
)
RULES = pytest.mark.parametrize("rule", [GREEDY, SEEDED], ids=["greedy", "seeded"])


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return toy_model_folder()


@pytest.fixture(scope="module")
def runner(folder: ModelFolder) -> ModelRunner:
    return ModelRunner(folder, device="cpu", lanes=LANES, kv_bytes=KV_BYTES, threads=1)


@RULES
def test_preemption_changes_nothing(runner: ModelRunner, rule: SamplingParams) -> None:
    long = [submit(n, prompt_of(60 + 50 * n, n), 70, rule, qos=3) for n in range(LANES)]
    urgent = [submit(10 + n, prompt_of(40 + n, 10 + n), 9, rule) for n in range(8)]
    run = EngineRun(runner)
    run.submit(*long)
    for number, message in enumerate(urgent):
        for _ in range(9 * (1 + number % 3)):  # amid a prefill, and amid decoding
            run.turn()
        run.submit(message)
    run.finish()
    stats = run.engine.stats()
    assert stats.preemptions > LANES
    for message in [*long, *urgent]:
        got = run.ids[int(message.generation)], run.logprobs[int(message.generation)]
        assert got == alone(runner, message)
    assert stats.kv_live_tokens == 0


@RULES
def test_prefixes_of_running_and_ended_lanes_change_nothing(
    runner: ModelRunner, rule: SamplingParams
) -> None:
    stem = prompt_of(300, 5)
    messages = [
        submit(n, [*stem, *prompt_of(5 + n, 20 + n)], 12 + n, rule, exact=True) for n in range(9)
    ]
    run = EngineRun(runner)
    run.submit(*messages[:6])
    run.finish()
    run.submit(*messages[6:])
    run.finish()
    for message in messages:
        got = run.ids[int(message.generation)], run.logprobs[int(message.generation)]
        assert got == alone(runner, message)
    cached = [run.ends[n].usage.cached_tokens for n in range(9)]
    assert cached[0] == 0
    assert min(cached[1:]) >= 300, "some prompts have a token more in common"
    stats = run.engine.stats()
    assert stats.cached_tokens == sum(cached)
    assert stats.prefill_tokens + sum(cached) == sum(305 + n for n in range(9))
    assert stats.kv_host_bytes > 300 * 1024


@RULES
def test_a_conversations_turns_change_nothing(runner: ModelRunner, rule: SamplingParams) -> None:
    """Each turn finds the one before, its answer by step, as the session's log says."""
    run, context, segments = EngineRun(runner), prompt_of(150, 1), [Segment(tokens=150)]
    for turn in range(4):
        message = submit(turn, context, 40, rule, exact=True, segments=tuple(segments))
        run.submit(message)
        run.finish()
        assert (run.ids[turn], run.logprobs[turn]) == alone(runner, message)
        if turn:
            assert run.ends[turn].usage.cached_tokens == len(context) - 21
        context = [*context, *run.ids[turn], *prompt_of(20, turn)]
        segments += [Segment(tokens=40, by_step=True), Segment(tokens=20)]


@RULES
def test_chunks_beside_decoding_change_nothing(runner: ModelRunner, rule: SamplingParams) -> None:
    run = EngineRun(runner)
    run.submit(submit(0, prompt_of(10), 300, rule))
    for _ in range(4):
        run.turn()
    message = submit(1, prompt_of(700, 2), 20, rule)
    for rate in (1.0, 900.0, 1e6):  # chunks of 16, of something between, of 128
        run.engine.scheduler.pacer.chunk_rate = rate
        # Another salt, so that nothing is taken over.
        again = replace(message, generation=GenerationId(int(rate) + 1), salt=str(rate).encode())
        run.submit(again)
        while int(rate) + 1 not in run.ends:
            run.turn()
        got = run.ids[int(rate) + 1], run.logprobs[int(rate) + 1]
        assert got == alone(runner, message)
    run.finish()


def test_no_room_in_the_system_costs_time_and_no_token(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = EngineRun(runner)

    def full(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("agent.worker.kv_cache.mmap.mmap", full)
    messages = [submit(n, prompt_of(100, n), 30, qos=3) for n in range(LANES)]
    run.submit(*messages)
    for _ in range(12):
        run.turn()
    run.submit(submit(9, prompt_of(30, 9), 5))
    run.finish()
    monkeypatch.undo()
    for message in messages:
        assert run.ids[int(message.generation)] == alone(runner, message)[0]
    assert run.engine.stats().preemptions == 1
