"""The engine over SmolLM2: what the toy model is too small to show."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from agent.models.folder import ModelFolder
from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from bus.ids import GenerationId, pack_ids
from bus.messages.parts import Segment
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Submit
from tests.harness.models import smollm2_folder

pytestmark = pytest.mark.model

TOKENS = 60
TEXTS = [
    "The capital of France is",
    "Once upon a time there was a small robot who lived at the edge of a wide forest, and",
    "1, 2, 3, 5, 8,",
    "Write a haiku about the sea:",
]


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return smollm2_folder()


@pytest.fixture(scope="module")
def runner(folder: ModelFolder) -> ModelRunner:
    return ModelRunner(folder, device="cpu", lanes=4, kv_bytes=256 << 20, threads=2)


@pytest.fixture(scope="module")
def prompts(folder: ModelFolder) -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder.tokenizer))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


def run(runner: ModelRunner, contexts: list[list[int]], replayed: int = 0) -> list[list[int]]:
    engine = Engine(runner)
    for index, context in enumerate(contexts):
        prompt = Segment(tokens=len(context) - replayed)
        engine.submit(
            Submit(
                generation=GenerationId(index),
                context=pack_ids(context),
                sampling=SamplingParams(temperature=0.0, ignore_eos=True),
                max_new_tokens=TOKENS - replayed,
                prompt_tokens=len(context) - replayed,
                generated_tokens=replayed,
                segments=(prompt, Segment(tokens=replayed, by_step=True)),
            ),
            0.0,
        )
    tokens: list[list[int]] = [[] for _ in contexts]
    while not engine.idle:
        for emission in engine.turn(0.0):
            if emission.token is not None:
                tokens[int(emission.generation)].append(emission.token)
    return tokens


@pytest.fixture(scope="module")
def together(runner: ModelRunner, prompts: list[list[int]]) -> list[list[int]]:
    return run(runner, prompts)


def test_greedy_alone_equals_greedy_in_a_batch_of_four(
    runner: ModelRunner, prompts: list[list[int]], together: list[list[int]]
) -> None:
    assert [len(ids) for ids in together] == [TOKENS] * 4
    assert [run(runner, [prompt])[0] for prompt in prompts] == together


def test_greedy_says_paris(
    folder: ModelFolder, prompts: list[list[int]], together: list[list[int]]
) -> None:
    from tokenizers import Tokenizer

    assert "Paris" in Tokenizer.from_file(str(folder.tokenizer)).decode(together[0])


def test_replay_by_step_goes_on_exactly(
    runner: ModelRunner, prompts: list[list[int]], together: list[list[int]]
) -> None:
    delivered = 23
    contexts = [p + t[:delivered] for p, t in zip(prompts, together, strict=True)]
    rest = run(runner, contexts, replayed=delivered)
    assert [t[:delivered] + r for t, r in zip(together, rest, strict=True)] == together


def test_chunks_of_any_length_give_the_same_bits(runner: ModelRunner, folder: ModelFolder) -> None:
    prompt = np.random.default_rng(0).integers(0, folder.signature.vocab, 128).tolist()
    results = []
    for cuts in ([0, 128], [0, 32, 64, 96, 128], [0, 2, 50, 126, 128], [0, 77, 128]):
        for start, stop in pairwise(cuts):
            logits = runner.prefill_chunk(1, prompt[start:stop], start)
        results.append(logits[0].copy())
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
