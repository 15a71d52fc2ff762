"""Exactness over real models: what bit-equality promises, with company, preemption and reuse."""

from __future__ import annotations

import pytest

from agent.models.folder import ModelFolder
from agent.worker.model_runner import ModelRunner
from bus.messages.parts import Segment
from bus.messages.sampling import SamplingParams
from bus.text.tokenizer import TextModel
from tests.harness.engine_run import GREEDY, EngineRun, alone, submit
from tests.harness.models import gemma3_folder, smollm2_folder

pytestmark = pytest.mark.model

LANES = 2
TOKENS = 24
STEM = (
    "The harbour master kept three lists. The first named every ship that had come in since the "
    "spring, with the day and the weather; the second named those that had left, and where they "
    "had said they would go; the third, which he showed to nobody, named those that he thought "
    "would not come back. On a grey morning in October he took the third list from its drawer, "
    "read it slowly from the top, and crossed out a name. "
)
TEXTS = ("Then he", "The ship was called", "He said to the boy:", "Far out,")
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=11, ignore_eos=True)
RULES = (GREEDY, SEEDED)


@pytest.fixture(scope="module", params=[smollm2_folder, gemma3_folder], ids=["smollm2", "gemma3"])
def folder(request: pytest.FixtureRequest) -> ModelFolder:
    found: ModelFolder = request.param()
    return found


@pytest.fixture(scope="module")
def runner(folder: ModelFolder) -> ModelRunner:
    tokens = folder.kv_bytes_per_token() * 400
    return ModelRunner(folder, device="cpu", lanes=LANES, kv_bytes=LANES * tokens, threads=2)


@pytest.fixture(scope="module")
def prompts(folder: ModelFolder) -> list[list[int]]:
    text = TextModel.open(folder.path)
    return [text.encode(STEM + end, add_special=True) for end in TEXTS]


@pytest.fixture(scope="module")
def expected(runner: ModelRunner, prompts: list[list[int]]) -> list[list[list[int]]]:
    """Ids of each prompt by each rule, alone on a worker that keeps nothing."""
    return [[alone(runner, submit(1, p, TOKENS, rule))[0] for p in prompts] for rule in RULES]


def test_company_prefixes_and_preemption_change_no_token(
    runner: ModelRunner, prompts: list[list[int]], expected: list[list[list[int]]]
) -> None:
    run = EngineRun(runner, host_kv_bytes=256 << 20)
    # Of the lowest class, sharing their beginning, on lanes that are fewer.
    for number, prompt in enumerate(prompts):
        run.submit(submit(number, prompt, TOKENS, GREEDY, qos=3, exact=True))
    for number, prompt in enumerate(prompts):
        for _ in range(9):
            run.turn()
        run.submit(submit(10 + number, prompt, TOKENS, SEEDED, exact=True))
    run.finish()
    stats = run.engine.stats()
    assert [run.ids[number] for number in range(4)] == expected[0]
    assert [run.ids[10 + number] for number in range(4)] == expected[1]
    assert stats.preemptions >= 2
    assert stats.cached_tokens > 7 * 60, "the beginning was computed once"


@pytest.mark.parametrize("chunk_rate", [1.0, 1200.0])
def test_the_length_of_chunks_changes_no_token(
    runner: ModelRunner,
    prompts: list[list[int]],
    expected: list[list[list[int]]],
    chunk_rate: float,
) -> None:
    run = EngineRun(runner, host_kv_bytes=0)
    run.submit(submit(1, prompts[1][:20], 60))
    for _ in range(3):
        run.turn()
    run.engine.scheduler.pacer.chunk_rate = chunk_rate
    run.submit(submit(2, prompts[0], TOKENS, SEEDED))
    run.finish()
    assert run.ids[2] == expected[1][0]


def test_a_session_goes_on_from_what_was_saved_as_from_a_replay(
    runner: ModelRunner, prompts: list[list[int]], expected: list[list[list[int]]]
) -> None:
    run = EngineRun(runner, host_kv_bytes=256 << 20)
    run.submit(submit(1, prompts[0], TOKENS, SEEDED))
    run.finish()
    context = [*prompts[0], *run.ids[1], *prompts[1][-12:]]
    segments = (
        Segment(tokens=len(prompts[0])),
        Segment(tokens=TOKENS, by_step=True),
        Segment(tokens=12),
    )
    turn = submit(2, context, TOKENS, SEEDED, exact=True, segments=segments)
    run.submit(turn)
    run.finish()
    assert run.ends[2].usage.cached_tokens == len(prompts[0]) + TOKENS - 1
    assert run.ids[2] == alone(runner, turn)[0]
