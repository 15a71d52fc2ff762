"""A chain of stages gives what the whole model gives, bit by bit, whatever happens meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from agent.models.folder import ModelFolder
from agent.worker.grammar import GrammarBuilder
from agent.worker.model_runner import ModelRunner
from agent.worker.stage_runner import StageRunner
from bus.errors import NoNode, QueueFull
from bus.ids import GenerationId, unpack_ids
from bus.messages.parts import Segment
from bus.messages.sampling import Constraint, SamplingParams
from bus.messages.worker import Submit
from bus.text.tokenizer import TextModel
from tests.harness.engine_run import GREEDY, alone, prompt_of, submit
from tests.harness.models import smollm2_folder, stage_folders, toy_model_folder
from tests.harness.stage_chain import StageChain, deep_toy_folder, open_stages

LANES, WINDOW = 6, 256
#: Less than what two lanes may hold, in each group.
HOST_TOKENS = 3 * 390
#: Log-probabilities are of all logits; those of 20 tokens are told.
RULE = replace(GREEDY, logprobs=20)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=11, ignore_eos=True, logprobs=20)


@dataclass
class Case:
    whole: ModelRunner
    stages: list[StageRunner]

    def chain(self, random: Random, **changes: object) -> StageChain:
        options = {"lanes": LANES, "window": WINDOW, "host_tokens": HOST_TOKENS, **changes}
        return StageChain(self.stages, random, **options)  # type: ignore[arg-type]

    def differing(self, run: StageChain, messages: Sequence[Submit]) -> list[int]:
        """Exact requests that are not as on the whole model alone, as far as they got."""
        found = []
        for message in messages:
            number = int(message.generation)
            ids, logprobs = run.ids[number], run.logprobs[number]
            if message.exact and ids:
                other_ids, other = alone(self.whole, message)
                if (ids, logprobs) != (other_ids[: len(ids)], other[: len(logprobs)]):
                    found.append(number)
        return found


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((toy_model_folder, 2), id="toy-2"),
        pytest.param((deep_toy_folder, 3), id="toy4-3"),
        pytest.param((smollm2_folder, 2), id="smollm2-2", marks=pytest.mark.model),
    ],
)
def case(request: pytest.FixtureRequest) -> Case:
    make: Callable[[], ModelFolder]
    make, stages = request.param
    whole = make()
    kv_bytes = LANES * WINDOW * whole.kv_bytes_per_token()
    return Case(
        ModelRunner(whole, device="cpu", lanes=LANES, kv_bytes=kv_bytes, threads=1),
        open_stages(stage_folders(whole, stages)),
    )


def test_ragged_sessions_together_give_the_whole_models_bits(case: Case) -> None:
    run = case.chain(Random(1))
    lengths = [5, 150, 33, 2, 200, 64, 1, 90, 17, 129]
    messages = [
        submit(i, prompt_of(n, i), 4 + 3 * i, SEEDED if i % 3 == 0 else RULE, exact=True)
        for i, n in enumerate(lengths)
    ]
    run.submit(*messages)
    run.finish()
    assert [len(run.ids[i]) for i in range(10)] == [4 + 3 * i for i in range(10)]
    assert not case.differing(run, messages)


@dataclass
class Script:
    """Makes requests that go on from each other, and does things to those that run."""

    random: Random
    run: StageChain
    made: list[Submit] = field(default_factory=list)

    def ids(self, count: int) -> list[int]:
        return [self.random.randrange(32, 127) for _ in range(count)]

    def beginning(self) -> tuple[list[int], tuple[Segment, ...]]:
        """A context and how it is to be computed: new, another's beginning, or its next turn."""
        kind = self.random.random()
        if not self.made or kind < 0.15:
            return self.ids(self.random.randrange(1, 200)), ()
        before = self.random.choice(self.made)
        ids = list(unpack_ids(before.context))
        answer = self.run.ids[int(before.generation)]
        if kind < 0.6 or not answer:
            cut = self.random.randrange(1, len(ids) + 1)
            return ids[:cut] + self.ids(min(self.random.choice((1, 2, 20, 65)), 244 - cut)), ()
        segments = before.segments or (Segment(tokens=len(ids)),)
        more = self.ids(self.random.choice((1, 2, 5)))
        segments += (Segment(tokens=len(answer), by_step=True), Segment(tokens=len(more)))
        return [*ids, *answer, *more], segments

    def submit(self) -> None:
        ids, segments = self.beginning()
        if not 0 < len(ids) <= WINDOW - 12:
            return
        message = submit(
            len(self.made),
            ids,
            self.random.randrange(1, 12),
            self.random.choice((RULE, SEEDED)),
            qos=self.random.choice((0, 1, 3, 3)),
            exact=self.random.random() < 0.8,
            segments=segments,
        )
        try:
            self.run.submit(message)
        except QueueFull:
            del self.run.ids[int(message.generation)]
            return
        self.made.append(message)

    def act(self) -> None:
        engine = self.run.engine
        running = [m.generation for m in self.made if int(m.generation) not in self.run.ends]
        kind = self.random.random()
        if kind < 0.03 and running:
            engine.cancel(self.random.choice(running))
        elif kind < 0.09 and running:
            engine.pause(self.random.choice(running), self.run.now)
        elif kind < 0.14:
            self.resume()

    def resume(self) -> None:
        for message in self.made:
            self.run.engine.resume(message.generation)


def test_exact_requests_are_as_on_the_whole_model_whatever_happens(case: Case) -> None:
    toy = case.whole.folder.name.startswith("toy")
    for seed in range(4 if toy else 1):
        depth = 1 + seed % 2 * len(case.stages)
        script = Script(Random(seed), case.chain(Random(seed + 100), depth=depth))
        run = script.run
        while len(script.made) < (60 if toy else 12):
            for _ in range(script.random.choice((1, 1, 3, 9))):
                script.submit()
            for _ in range(script.random.randrange(1, 60)):
                script.act()
                run.turn()
        script.resume()
        run.finish()
        assert len(run.ends) == len(script.made)
        assert not case.differing(run, script.made), seed
        assert not run.failed
        if toy:
            stats = run.engine.stats()
            assert stats.cached_tokens > 0
            assert stats.preemptions > 0
            assert any(end.reason == "cancelled" for end in run.ends.values())


def test_host_memory_is_mirrored_to_the_token(case: Case) -> None:
    run = case.chain(Random(3), host_tokens=64 * 40)
    run.submit(*(submit(i, prompt_of(130, i), 3, qos=3) for i in range(8)))
    run.finish()
    token_bytes = case.stages[-1].token_bytes
    tokens = run.engine.stats().kv_host_bytes // token_bytes
    assert tokens == 8 * 132
    for executor in run.executors:
        assert executor.stats().kv_host_bytes == tokens * executor.runner.token_bytes


def test_a_later_turn_takes_over_its_prefix_wherever_it_is(case: Case) -> None:
    run = case.chain(Random(5))
    first = submit(1, prompt_of(140), 5, RULE)
    run.submit(submit(0, prompt_of(9), 3), first)
    run.finish()
    segments = (Segment(tokens=140), Segment(tokens=5, by_step=True), Segment(tokens=3))
    turn = submit(2, [*prompt_of(140), *run.ids[1], 40, 41, 42], 6, RULE, segments=segments)
    again = replace(turn, exact=True)
    run.submit(again)
    run.finish()
    assert run.ends[2].usage.cached_tokens >= 128
    assert not case.differing(run, [again])


def test_after_a_chain_breaks_a_replay_in_the_next_goes_on_bit_by_bit(case: Case) -> None:
    run = case.chain(Random(9))
    for rule in (RULE, SEEDED):
        whole_ids, _ = alone(case.whole, submit(1, prompt_of(40), 24, rule))
        number = 10 if rule is RULE else 20
        run.submit(submit(number, prompt_of(40), 24, rule))
        while len(run.ids[number]) < 9:
            run.turn()
        run.close(run.engine.chain or 0)
        assert run.engine.idle
        assert not run.engine.knows(GenerationId(number))
        # What is still on its way is of the old chain, and is dropped.
        assert any(run.queues)
        run.open(number)
        delivered = run.ids[number]
        context = [*prompt_of(40), *delivered]
        segments = (Segment(tokens=40), Segment(tokens=len(delivered), by_step=True))
        again = submit(
            number + 1, context, 24 - len(delivered), rule, segments=segments, exact=True
        )
        run.submit(replace(again, prompt_tokens=40))
        run.finish()
        assert delivered + run.ids[number + 1] == whole_ids
    assert not run.failed


def test_expiry_and_a_window_end_as_on_a_whole_model(case: Case) -> None:
    run = case.chain(Random(2))
    run.submit(submit(1, prompt_of(WINDOW - 10), 1000), submit(2, prompt_of(20), 200, wall_ms=700))
    run.finish()
    assert (run.ends[1].reason, len(run.ids[1])) == ("length", 10)
    assert run.ends[2].reason == "expired"
    assert 0 < len(run.ids[2]) < 60


def test_half_precision_hidden_states_are_half_the_bytes(case: Case) -> None:
    sent = []
    for hidden_type in ("float32", "float16"):
        run = case.chain(Random(4), hidden_type=hidden_type)
        run.submit(submit(1, prompt_of(30), 10))
        run.finish()
        assert len(run.ids[1]) == 10
        sent.append(run.sent_bytes)
    hops, tokens = len(run.executors), 39
    width = case.whole.folder.signature.hidden
    assert sent[0] - sent[1] == hops * tokens * width * 2
    beside = sent[0] - hops * tokens * width * 4
    assert beside <= hops * tokens * 32


def test_without_a_chain_nothing_is_taken(case: Case) -> None:
    run = case.chain(Random(6))
    run.engine.close()
    with pytest.raises(NoNode, match="other stages of model"):
        run.engine.submit(submit(1, prompt_of(5), 3), 0.0)


def test_constraints_hold_and_penalties_are_as_on_the_whole_model(case: Case) -> None:
    text = TextModel.open(case.whole.folder.path)
    builder = GrammarBuilder(lambda: text, case.whole.folder.signature.vocab, LANES)
    digits = Constraint(kind="regex", source="[0-9]{12}")
    rules = [
        replace(GREEDY, logprobs=5, constraint=digits, ignore_eos=False),
        replace(SEEDED, repetition_penalty=1.3, presence_penalty=0.4, logprobs=5),
    ]
    messages = [submit(i, prompt_of(30, i), 20, rules[i % 2], exact=True) for i in range(6)]
    try:
        run = case.chain(Random(8), grammars=builder)
        run.submit(*messages)
        while len(run.ends) < len(messages):
            run.turn()
    finally:
        builder.close()
    for number in (0, 2, 4):
        assert run.ends[number].reason in ("stop", "eos")
        written = b"".join(text.vocabulary[token] for token in run.ids[number])
        assert re.match(rb"[0-9]{12}", written)
    assert not case.differing(run, messages[1::2])


def test_chunks_of_a_lone_prompt_are_under_way_behind_each_other(case: Case) -> None:
    # Of class 1, since a lone prompt of class 0 may be read in one chunk.
    lone = submit(1, prompt_of(244), 9, SEEDED, qos=1, exact=True)
    most = []
    for depth in (1, len(case.stages)):
        run = case.chain(Random(8), depth=depth)
        run.submit(lone)
        found = 0
        while not run.engine.idle:
            run.turn()
            found = max(found, sum(len(queue) for queue in run.queues))
        assert not case.differing(run, [lone])
        most.append(found)
    assert most == [1, 2]


def test_units_of_several_groups_are_under_way_at_once(case: Case) -> None:
    run = case.chain(Random(8))
    run.submit(*(submit(i, prompt_of(20, i), 30) for i in range(6)))
    most = 0
    while not run.engine.idle:
        run.turn()
        most = max(most, sum(len(queue) for queue in run.queues))
    stages = len(case.stages)
    assert most == stages
    stats = run.engine.stats()
    assert stats.decode_tokens == 6 * 29
    assert stats.decode_busy_s + stats.prefill_busy_s > 0
