"""What a request may ask of its draws, through the engine and the worker's loop."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator, Sequence

import pytest

from agent.models.folder import ModelFolder
from agent.worker.engine import Engine
from agent.worker.grammar import AHEAD, GrammarBuilder
from agent.worker.model_runner import ModelRunner
from bus.errors import Invalid
from bus.ids import GenerationId, PackedIds, pack_ids
from bus.messages.parts import Finish
from bus.messages.sampling import Constraint, SamplingParams
from bus.messages.worker import Accepted, Output, Submit
from bus.text.tokenizer import TextModel
from tests.harness.engine_run import EngineRun, prompt_of, submit
from tests.harness.memory_pipe import MemoryPipe
from tests.harness.models import toy_model_folder

PROMPT = prompt_of(30, 3)


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return toy_model_folder()


@pytest.fixture(scope="module")
def text(folder: ModelFolder) -> TextModel:
    return TextModel.open(folder.path)


@pytest.fixture(scope="module")
def runner(folder: ModelFolder) -> ModelRunner:
    return ModelRunner(folder, device="cpu", lanes=4, kv_bytes=16 << 20, threads=1)


def one(runner: ModelRunner, rule: SamplingParams, count: int = 40) -> tuple[list[int], Finish]:
    run = EngineRun(runner)
    run.submit(submit(1, PROMPT, count, rule))
    run.finish()
    return run.ids[1], run.ends[1]


@pytest.fixture(scope="module")
def free(runner: ModelRunner) -> list[int]:
    return one(runner, SamplingParams(temperature=0.0, ignore_eos=True))[0]


def test_a_stop_id_ends_and_is_kept(runner: ModelRunner, free: list[int]) -> None:
    stop = free[5]
    rule = SamplingParams(temperature=0.0, ignore_eos=True, stop_ids=pack_ids([stop]))
    ids, finish = one(runner, rule)
    assert ids == free[: free.index(stop) + 1]
    assert (finish.reason, finish.stop) == ("stop", "")


def test_a_stop_string_ends_and_is_named(
    runner: ModelRunner, free: list[int], text: TextModel
) -> None:
    whole = text.decode(free, skip_special=True)
    stop = whole[8:11]
    ids, finish = one(
        runner, SamplingParams(temperature=0.0, ignore_eos=True, stop=(stop, "\0never"))
    )
    assert ids == free[: len(ids)]
    assert stop in text.decode(ids, skip_special=True)
    assert stop not in text.decode(ids[:-1], skip_special=True)
    assert (finish.reason, finish.stop) == ("stop", stop)


def test_min_tokens_keeps_stops_from_ending(runner: ModelRunner, free: list[int]) -> None:
    rule = SamplingParams(
        temperature=0.0, ignore_eos=True, stop_ids=pack_ids(sorted(set(free))), min_tokens=12
    )
    ids, finish = one(runner, rule)
    assert len(ids) >= 12
    assert not set(ids[:12]) & set(free)
    assert finish.reason in {"stop", "length"}


def test_a_bias_forces_a_token(runner: ModelRunner) -> None:
    rule = SamplingParams(
        temperature=0.0, ignore_eos=True, bias_ids=pack_ids([77]), biases=(1000.0,)
    )
    assert one(runner, rule, 5)[0] == [77] * 5


def test_logprobs_come_with_each_token(runner: ModelRunner, free: list[int]) -> None:
    rule = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=3)
    run = EngineRun(runner)
    run.submit(submit(1, PROMPT, 40, rule), submit(2, PROMPT, 40))
    run.finish()
    assert run.ids[1] == run.ids[2] == free
    assert run.logprobs[2] == b""
    records = list(struct.iter_unpack("<fIfIf", run.logprobs[1]))
    assert len(records) == 40
    for chosen, _, second, _, third in records:
        assert 0.0 >= chosen >= second >= third, "greedy takes the likeliest"


@pytest.mark.parametrize(
    ("rule", "param"),
    [
        (SamplingParams(bias_ids=pack_ids([10**6]), biases=(1.0,)), "logit_bias"),
        (SamplingParams(bias_ids=pack_ids([1, 2]), biases=(1.0,)), "logit_bias"),
        (SamplingParams(constraint=Constraint(kind="regex", source="a")), "constraint"),
    ],
)
def test_g10_what_can_not_be_honoured_is_refused_by_name(
    runner: ModelRunner, rule: SamplingParams, param: str
) -> None:
    engine = Engine(runner)
    with pytest.raises(Invalid) as caught:
        engine.submit(submit(1, PROMPT, 5, rule), 0.0)
    assert caught.value.param == param
    assert engine.idle
    engine.submit(submit(1, PROMPT, 5), 0.0)  # It is not known.
    assert engine.scheduler.queued == 1


def test_the_loop_refuses_it_and_serves_the_next(runner: ModelRunner) -> None:
    bad = SamplingParams(bias_ids=pack_ids([10**6]), biases=(1.0,))
    pipe = MemoryPipe(submit(1, PROMPT, 5, bad), submit(2, PROMPT, 5))
    sent = [message for _, message in pipe.serve(runner)]
    assert [int(m.generation) for m in sent if isinstance(m, Accepted)] == [1, 2]
    ends = [r.finish for m in sent if isinstance(m, Output) for r in m.runs if r.finish]
    assert [(end.reason, end.error_code, end.param) for end in ends] == [
        ("refused", "invalid", "logit_bias"),
        ("length", "", ""),
    ]
    assert str(10**6) in ends[0].message


@pytest.fixture
def grammars(folder: ModelFolder, text: TextModel) -> Iterator[GrammarBuilder]:
    builder = GrammarBuilder(lambda: text, folder.signature.vocab)
    yield builder
    builder.close()


def constrained(generation: int, pattern: str, context: list[int] = PROMPT) -> Submit:
    rule = SamplingParams(temperature=1.0, constraint=Constraint(kind="regex", source=pattern))
    return submit(generation, context, 40, rule)


def finish(run: EngineRun, *generations: int) -> None:
    """Until these ended; grammars are made meanwhile."""
    until = time.monotonic() + 60.0
    while not all(generation in run.ends for generation in generations):
        run.turn()
        assert time.monotonic() < until


def test_a_constraint_is_built_beside_and_holds(
    runner: ModelRunner, grammars: GrammarBuilder, text: TextModel, free: list[int]
) -> None:
    run = EngineRun(runner, text=text, grammars=grammars)
    run.submit(constrained(1, "[0-9]{4}-x"), submit(2, PROMPT, 40))
    assert run.engine.building
    assert run.engine.scheduler.queued == 2
    finish(run, 1, 2)
    assert re.fullmatch("[0-9]{4}-x", text.decode(run.ids[1], skip_special=True))
    assert run.ends[1].reason in {"stop", "eos"}
    assert run.ids[2] == free, "its neighbour knows nothing of it"


def test_a_constraint_that_can_not_be_built_ends_its_request_alone(
    runner: ModelRunner, grammars: GrammarBuilder, text: TextModel
) -> None:
    run = EngineRun(runner, text=text, grammars=grammars)
    run.submit(constrained(1, "(["), submit(2, PROMPT, 40))
    finish(run, 1, 2)
    assert (run.ends[1].reason, run.ends[1].error_code) == ("error", "constraint_invalid")
    assert run.ids[1] == []
    assert run.ends[2].reason == "length"


def test_cancel_reaches_one_whose_grammar_is_being_built(
    runner: ModelRunner, grammars: GrammarBuilder, text: TextModel
) -> None:
    run = EngineRun(runner, text=text, grammars=grammars)
    run.submit(constrained(1, "[a-z]{200}"))
    run.engine.cancel(GenerationId(1))
    run.turn()
    assert run.ends[1].reason == "cancelled"
    assert not run.engine.building
    assert run.engine.idle


def test_few_grammars_are_made_before_their_turn_and_all_are_served(
    runner: ModelRunner, grammars: GrammarBuilder, text: TextModel
) -> None:
    run = EngineRun(runner, text=text, grammars=grammars)
    numbers = range(1, 25)
    run.submit(*(constrained(number, "[0-9]{4}-x") for number in numbers))
    most = 0
    until = time.monotonic() + 60.0
    while not all(number in run.ends for number in numbers):
        most = max(most, grammars.ahead)
        run.turn()
        assert time.monotonic() < until
    # The builder was told of one lane, and all are of one class.
    assert most == 1 + AHEAD
    assert grammars.ahead == 0
    assert all(
        re.fullmatch("[0-9]{4}-x", text.decode(run.ids[number], skip_special=True))
        for number in numbers
    )


def test_those_that_nobody_reads_keep_no_grammar_and_go_on_when_read(
    runner: ModelRunner, grammars: GrammarBuilder, text: TextModel
) -> None:
    run = EngineRun(runner, text=text, grammars=grammars)
    stopped = range(1, 11)
    run.submit(*(constrained(number, "[0-9]{4}-x") for number in stopped))
    for number in stopped:
        run.engine.pause(GenerationId(number))
    run.submit(constrained(20, "[0-9]{4}-x"))
    finish(run, 20)
    assert grammars.ahead == 0
    assert [number for number in stopped if number in run.ends] == []
    for number in stopped:
        run.engine.resume(GenerationId(number))
    finish(run, *stopped)
    assert all(run.ends[number].reason in ("stop", "eos") for number in stopped)


def test_empty_bias_and_stops_are_fine(runner: ModelRunner, free: list[int]) -> None:
    rule = SamplingParams(
        temperature=0.0, ignore_eos=True, bias_ids=PackedIds(b""), biases=(), stop=()
    )
    assert one(runner, rule)[0] == free


class BrokenGrammar:
    """A constraint whose engine fails in a way that nobody foresaw."""

    stopped = False
    failure = ""

    def __init__(self, fails: str) -> None:
        self._fails = fails

    def mask(self) -> None:
        if self._fails == "mask":
            raise ValueError("no such mask")

    def take(self, token: int) -> None:
        if self._fails == "take":
            raise ZeroDivisionError(token)


class BrokenGrammars:
    """Gives each generation a broken one at once."""

    def __init__(self, fails: str) -> None:
        self._fails = fails
        self._ready: list[tuple[GenerationId, BrokenGrammar]] = []

    def start(
        self,
        generation: GenerationId,
        constraint: Constraint,
        generated: Sequence[int],
        qos: int = 0,
    ) -> None:
        self._ready.append((generation, BrokenGrammar(self._fails)))

    def drop(self, generation: GenerationId) -> None:
        pass

    def begun(self, generation: GenerationId) -> None:
        pass

    def sleep(self, generation: GenerationId) -> bool:
        return False

    def wake(self, generation: GenerationId) -> None:
        pass

    def ready(self) -> list[tuple[GenerationId, BrokenGrammar]]:
        ready, self._ready = self._ready, []
        return ready


@pytest.mark.parametrize("fails", ["mask", "take"])
def test_an_unforeseen_fault_in_a_draw_ends_that_request_alone(
    runner: ModelRunner, text: TextModel, free: list[int], fails: str
) -> None:
    run = EngineRun(runner, text=text, grammars=BrokenGrammars(fails))
    run.submit(submit(2, PROMPT, 40))
    run.turn()
    run.submit(constrained(1, "x"))
    finish(run, 1, 2)
    assert (run.ends[1].reason, run.ends[1].error_code) == ("error", "internal")
    assert run.ids[1] == []
    assert run.ids[2] == free
