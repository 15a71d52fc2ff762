"""The engine over the toy model, against a loop that calls ONNX Runtime by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from agent.models.folder import ModelFolder
from agent.models.selftest import open_session
from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from agent.worker.work import Emission
from bus.errors import ConfigInvalid
from bus.ids import GenerationId
from bus.messages.parts import Finish, Segment
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Submit
from tests.harness.engine_run import GREEDY, prompt_of, submit
from tests.harness.models import toy_model_folder

LANES = 6
KV_BYTES = 16 << 20


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return toy_model_folder()


@pytest.fixture(scope="module")
def runner(folder: ModelFolder) -> ModelRunner:
    return ModelRunner(folder, device="cpu", lanes=LANES, kv_bytes=KV_BYTES, threads=1)


class RawLoop:
    """Greedy generation with plain `session.run` calls and arrays of its own."""

    def __init__(self, folder: ModelFolder) -> None:
        self.session = open_session(folder.graph)
        self.signature = folder.signature
        self.caches = [name for name in self.signature.inputs if name.startswith("past.")]

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        s = self.signature
        past = {n: np.zeros((1, s.kv_heads, 512, s.head_dim), np.float32) for n in self.caches}
        feed, length, tokens = list(prompt), 0, []
        for _ in range(count):
            length += len(feed)
            out = self.session.run(
                None,
                {
                    "input_ids": np.array([feed], np.int64),
                    "seqlens_k": np.array([length - 1], np.int32),
                    "total_sequence_length": np.array(length, np.int32),
                    "logits_idx": np.array([len(feed) - 1], np.int64),
                    **past,
                },
            )
            names = [o.name for o in self.session.get_outputs()]
            named = dict(zip(names, out, strict=True))
            past = {n: named[n.replace("past", "present")] for n in self.caches}
            feed = [int(named["logits"][0].argmax())]
            tokens += feed
        return tokens


@pytest.fixture(scope="module")
def raw(folder: ModelFolder) -> RawLoop:
    return RawLoop(folder)


def run(engine: Engine, *submits: Submit) -> dict[int, list[int]]:
    """Run all to their ends; token ids by generation."""
    for message in submits:
        engine.submit(message, 0.0)
    tokens: dict[int, list[int]] = {}
    while not engine.idle:
        collect(engine.turn(0.0), tokens)
        engine.check_integrity()
    return tokens


def collect(emissions: list[Emission], into: dict[int, list[int]]) -> None:
    for emission in emissions:
        row = into.setdefault(int(emission.generation), [])
        if emission.token is not None:
            assert emission.index == len(row)
            row.append(emission.token)


def test_greedy_equals_the_raw_loop(runner: ModelRunner, raw: RawLoop) -> None:
    prompt = prompt_of(20)
    assert run(Engine(runner), submit(1, prompt, 40)) == {1: raw.greedy(prompt, 40)}


def test_greedy_is_the_same_in_any_company(runner: ModelRunner, raw: RawLoop) -> None:
    lengths = [5, 150, 33, 2, 300, 64, 1, 90, 17]
    submits = [submit(i, prompt_of(n, i), 10 + 7 * i) for i, n in enumerate(lengths)]
    tokens = run(Engine(runner), *submits)
    for index, length in enumerate(lengths):
        assert tokens[index] == raw.greedy(prompt_of(length, index), 10 + 7 * index), index


def chunk_logits(
    runner: ModelRunner, prompt: list[int], cuts: list[int]
) -> npt.NDArray[np.float32]:
    out = np.empty(0, np.float32)
    for start, stop in zip([0, *cuts], [*cuts, len(prompt)], strict=True):
        out = runner.prefill_chunk(2, prompt[start:stop], start)[0].copy()
    return out


@pytest.mark.parametrize("cuts", [[2], [58], [2, 4, 6], [20, 40], [31]])
def test_chunks_of_any_length_give_the_same_bits(runner: ModelRunner, cuts: list[int]) -> None:
    prompt = prompt_of(60)
    whole = chunk_logits(runner, prompt, [])
    np.testing.assert_array_equal(chunk_logits(runner, prompt, cuts), whole)


def test_steps_give_the_same_bits_in_any_batch(runner: ModelRunner) -> None:
    prompts = [prompt_of(10 + lane, lane) for lane in range(LANES)]
    for lane, prompt in enumerate(prompts):
        runner.prefill_chunk(lane, prompt, 0)
    lengths = [len(prompt) + 1 for prompt in prompts]
    together = runner.decode([65] * LANES, lengths).copy()
    for width in range(1, LANES):
        rows = runner.decode([65] * width, lengths[:width])
        np.testing.assert_array_equal(rows, together[:width])


def test_a_copied_lane_goes_on_bit_by_bit(runner: ModelRunner) -> None:
    prompt = prompt_of(50)
    runner.prefill_chunk(0, prompt, 0)
    expected = runner.decode([70], [51])[0].copy()
    runner.slab.copy_lane(0, 1, 50)
    np.testing.assert_array_equal(runner.decode([70, 70], [51, 51])[1], expected)


def test_replay_of_delivered_tokens_goes_on_as_the_stream_would(runner: ModelRunner) -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.95, seed=42, ignore_eos=True)
    for rule in (GREEDY, sampling):
        prompt = prompt_of(40)
        whole = run(Engine(runner), submit(1, prompt, 30, rule))[1]
        for delivered in (1, 2, 17):
            segments = (Segment(tokens=40), Segment(tokens=delivered, by_step=True))
            context = prompt + whole[:delivered]
            again = submit(2, context, 30 - delivered, rule, segments=segments)
            rest = run(Engine(runner), again)[2]
            assert whole[:delivered] + rest == whole


def test_pausing_changes_no_token(runner: ModelRunner, raw: RawLoop) -> None:
    engine = Engine(runner)
    prompts = [prompt_of(30, 1), prompt_of(200, 2), prompt_of(9, 3)]
    for index, prompt in enumerate(prompts):
        engine.submit(submit(index, prompt, 25), 0.0)
    tokens: dict[int, list[int]] = {}
    for turn in range(60):
        collect(engine.turn(0.0), tokens)
        held = GenerationId(turn % 3)
        (engine.pause if turn % 2 else engine.resume)(held)
    for index in range(3):
        engine.resume(GenerationId(index))
    while not engine.idle:
        collect(engine.turn(0.0), tokens)
    assert tokens == {i: raw.greedy(prompt, 25) for i, prompt in enumerate(prompts)}


def test_sampling_is_the_same_in_any_company_and_differs_by_seed(runner: ModelRunner) -> None:
    rules = [SamplingParams(temperature=1.5, seed=seed, ignore_eos=True) for seed in range(4)]
    prompt = prompt_of(12)
    together = run(Engine(runner), *(submit(i, prompt, 20, rule) for i, rule in enumerate(rules)))
    alone = {i: run(Engine(runner), submit(i, prompt, 20, rule))[i] for i, rule in enumerate(rules)}
    assert together == alone
    assert len({tuple(ids) for ids in alone.values()}) == 4


def test_g6_generation_stops_at_the_window(folder: ModelFolder) -> None:
    small = ModelRunner(
        folder,
        device="cpu",
        lanes=1,
        kv_bytes=100 * folder.kv_bytes_per_token(),
        threads=1,
    )
    assert small.window == 100
    assert len(run(Engine(small), submit(1, prompt_of(90), 1000))[1]) == 10


def test_a_kv_budget_too_small_is_refused(folder: ModelFolder) -> None:
    with pytest.raises(ConfigInvalid, match="KV budget"):
        ModelRunner(folder, device="cpu", lanes=8, kv_bytes=1000, threads=1)


def test_a_run_that_fails_ends_its_generations_and_the_engine_goes_on(
    folder: ModelFolder, raw: RawLoop
) -> None:
    # A record that promises more positions than the graph's rotary tables have.
    signature = dataclasses.replace(folder.signature, max_positions=5000)
    wrong = dataclasses.replace(folder, signature=signature)
    engine = Engine(ModelRunner(wrong, device="cpu", lanes=2, kv_bytes=KV_BYTES, threads=1))
    engine.submit(submit(1, prompt_of(4200), 5), 0.0)
    engine.submit(submit(2, prompt_of(8), 5), 0.0)
    ends: dict[int, Finish] = {}
    tokens: dict[int, list[int]] = {}
    while not engine.idle:
        emissions = engine.turn(0.0)
        collect(emissions, tokens)
        ends.update({int(e.generation): e.finish for e in emissions if e.finish})
    assert (ends[1].reason, ends[1].error_code) == ("error", "internal")
    assert "ONNX Runtime failed" in ends[1].message
    assert ends[2].reason == "length"
    assert tokens[2] == raw.greedy(prompt_of(8), 5)


def test_counters(runner: ModelRunner) -> None:
    engine = Engine(runner)
    # Of class 1, since a lone prompt of class 0 is read in one chunk.
    run(
        engine,
        dataclasses.replace(submit(1, prompt_of(130), 11), qos=1),
        submit(2, prompt_of(20), 1),
    )
    stats = engine.stats()
    assert stats.prefill_tokens == 150
    assert stats.decode_tokens == 10
    assert stats.steps == 2 + 1 + 10  # chunks of 128 and 2, of 20, and the steps
    assert stats.decode_busy_s > 0.0
    assert stats.prefill_busy_s > 0.0
    assert (stats.lanes_used, stats.queued, stats.kv_live_tokens) == (0, 0, 0)
    engine.turn(0.0)
    assert engine.stats().phase == "idle"


def test_the_self_test_passes(runner: ModelRunner) -> None:
    runner.self_test()


def test_threads_do_not_change_the_bits(folder: ModelFolder, runner: ModelRunner) -> None:
    two = ModelRunner(folder, device="cpu", lanes=LANES, kv_bytes=KV_BYTES, threads=2)
    assert two.numerics == runner.numerics
    prompt = prompt_of(100)
    np.testing.assert_array_equal(chunk_logits(two, prompt, []), chunk_logits(runner, prompt, []))
