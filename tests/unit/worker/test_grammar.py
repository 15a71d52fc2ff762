"""Grammars at work: masks, replay, ends, and matchers made in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from llguidance import LLMatcher, LLParserLimits

from agent.worker.draw_state import DrawState
from agent.worker.grammar import AHEAD, MAX_WAITING, Grammar, GrammarBuilder, Made
from agent.worker.sampler import sample
from bus.errors import ConstraintInvalid, ConstraintReplayFailed, Internal, QueueFull
from bus.ids import GenerationId
from bus.messages.sampling import Constraint, SamplingParams
from bus.text.constraints import make_matcher, make_tokenizer
from bus.text.tokenizer import TextModel
from tests.harness.models import toy_model_folder

TOY = TextModel.open(toy_model_folder().path)
#: More than the tokenizer has, as models pad it.
VOCAB = 300
TOKENIZER = make_tokenizer(TOY, VOCAB)
SCHEMA = Constraint(
    kind="json_schema",
    source=json.dumps(
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    ),
)


def made(constraint: Constraint = SCHEMA) -> Grammar:
    return Grammar(make_matcher(TOKENIZER, constraint), -(-VOCAB // 32))


def regex(source: str) -> Constraint:
    return Constraint(kind="regex", source=source)


def allowed(mask: npt.NDArray[np.uint32]) -> set[int]:
    return {token for token in range(len(mask) * 32) if mask[token >> 5] >> (token & 31) & 1}


def test_the_mask_has_one_bit_for_each_token_that_may_follow() -> None:
    grammar = made(regex("a[bc]|x"))
    assert allowed(grammar.mask()) == {ord("a"), ord("x")}
    grammar.take(ord("a"))
    mask = grammar.mask()
    assert mask.dtype == np.uint32
    assert mask.shape == (10,)
    assert allowed(mask) == {ord("b"), ord("c")}


def test_the_same_array_is_filled_again() -> None:
    grammar = made(regex("ab"))
    first = grammar.mask()
    grammar.take(ord("a"))
    assert grammar.mask() is first


def test_the_token_that_stops_the_grammar_is_kept_and_nothing_follows() -> None:
    grammar = made(regex("ab?"))
    assert not grammar.stopped
    grammar.take(ord("a"))
    assert allowed(grammar.mask()) == {ord("b"), *TOY.eos}
    assert not grammar.stopped
    grammar.take(ord("b"))
    assert grammar.stopped


def test_an_end_that_is_drawn_although_ignored_stops_it() -> None:
    grammar = made(regex("a*"))
    grammar.mask()
    grammar.take(TOY.eos[0])
    assert grammar.stopped


def test_replay_leads_where_the_tokens_led() -> None:
    text = b'{"a": 12, "b": "y"}'
    whole = made()
    for cut in range(len(text)):
        replayed = made()
        replayed.replay(list(text[:cut]))
        assert np.array_equal(replayed.mask(), whole.mask())
        assert replayed.stopped == whole.stopped
        whole.take(text[cut])
    assert whole.stopped


def test_tokens_that_do_not_fit_are_told() -> None:
    grammar = made()
    with pytest.raises(ConstraintReplayFailed, match=r"of 3 tokens delivered so far .* allows 2"):
        grammar.replay(list(b'{"x'))
    with pytest.raises(ConstraintReplayFailed, match="token 120 does not fit"):
        made().take(ord("x"))
    # Ids beyond the tokenizer, and beyond the vocabulary.
    for token in (270, 100_000):
        with pytest.raises(ConstraintReplayFailed):
            made(regex("(?s:.)*")).take(token)


def test_a_limit_reached_inside_an_answer_allows_nothing_and_is_no_stop() -> None:
    source = LLMatcher.grammar_from_regex("[ab]*a[ab]{13}")
    limits = LLParserLimits(max_lexer_states=50, verbose_errors=False)
    grammar = Grammar(LLMatcher(TOKENIZER, source, log_level=0, limits=limits), -(-VOCAB // 32))
    choice = np.random.default_rng(1)
    for _ in range(200):
        tokens = sorted(allowed(grammar.mask()) - set(TOY.eos))
        if not tokens:
            break
        grammar.take(int(choice.choice(tokens)))
    assert "too many states" in grammar.failure
    assert allowed(grammar.mask()) == set()
    assert not grammar.stopped
    params = SamplingParams(temperature=0.0)
    (drawn,) = sample(np.zeros((1, VOCAB), np.float32), [state(grammar, params)], [5])
    assert isinstance(drawn.error, ConstraintInvalid)


def state(grammar: Grammar, params: SamplingParams) -> DrawState:
    return DrawState(
        params,
        vocab=VOCAB,
        eos_ids=TOY.eos,
        special_ids=frozenset(TOY.special),
        prompt=[1, 2],
        generated=[],
        vocabulary=lambda: TOY.vocabulary,
        grammar=grammar,
    )


@pytest.mark.parametrize("seed", range(20))
def test_drawn_through_the_sampler_the_answer_is_valid(seed: int) -> None:
    params = SamplingParams(temperature=1.0, seed=seed, logprobs=4, constraint=SCHEMA)
    draws = state(made(), params)
    choice = np.random.default_rng(seed)
    text = b""
    for position in range(200):
        logits = choice.normal(size=(1, VOCAB)).astype(np.float32)
        # What comes after the vocabulary of the tokenizer is the likeliest of all.
        logits[0, 260:] += 100
        (drawn,) = sample(logits, [draws], [position])
        assert drawn.token is not None
        text += bytes([drawn.token])
        taken = draws.take(drawn.token)
        if taken.reason:
            assert taken.reason == "stop"
            break
    value = json.loads(text)
    assert type(value["a"]) is int
    assert value["b"] in ("x", "y")


@pytest.fixture
def builder() -> Iterator[GrammarBuilder]:
    made = GrammarBuilder(lambda: TOY, VOCAB)
    yield made
    made.close()


def wait_for(builder: GrammarBuilder, count: int) -> list[Made]:
    """What the builder has, once it is so many."""
    found: list[Made] = []
    done = threading.Event()
    for _ in range(2000):
        found += builder.ready()
        if len(found) >= count:
            return found
        done.wait(0.005)
    raise AssertionError(f"the builder made {len(found)} of {count} grammars")


def test_grammars_are_made_in_a_thread(builder: GrammarBuilder) -> None:
    builder.start(GenerationId(1), SCHEMA, [])
    builder.start(GenerationId(2), SCHEMA, list(b'{"a":'))
    assert builder.waiting == 2
    grammars = dict(wait_for(builder, 2))
    assert builder.waiting == 0
    first, second = grammars[GenerationId(1)], grammars[GenerationId(2)]
    assert isinstance(first, Grammar)
    assert isinstance(second, Grammar)
    assert allowed(first.mask()) == {ord("{")}
    assert allowed(second.mask()) == {*b" \n-0123456789"}


def test_what_can_not_be_made_is_that_generation_s_error(builder: GrammarBuilder) -> None:
    builder.start(GenerationId(1), regex("("), [])
    builder.start(GenerationId(2), SCHEMA, list(b"x"))
    builder.start(GenerationId(3), SCHEMA, [])
    kinds = {generation: type(made) for generation, made in wait_for(builder, 3)}
    assert kinds == {1: ConstraintInvalid, 2: ConstraintReplayFailed, 3: Grammar}


def test_what_nobody_wants_any_more_is_not_handed_out(builder: GrammarBuilder) -> None:
    builder.start(GenerationId(1), SCHEMA, [])
    builder.drop(GenerationId(1))
    builder.drop(GenerationId(7))
    builder.start(GenerationId(2), SCHEMA, [])
    assert [generation for generation, _ in wait_for(builder, 1)] == [2]


def test_a_number_that_is_used_again_gets_the_grammar_of_its_last_start(
    builder: GrammarBuilder,
) -> None:
    builder.start(GenerationId(1), regex("a"), [])
    builder.drop(GenerationId(1))
    builder.start(GenerationId(1), regex("b"), [])
    ((generation, grammar),) = wait_for(builder, 1)
    assert generation == 1
    assert isinstance(grammar, Grammar)
    assert allowed(grammar.mask()) == {ord("b")}


class PanicError(BaseException):
    """As native code's panics: no Exception."""


def test_a_panic_is_one_request_s_error_and_the_thread_goes_on() -> None:
    opened: list[int] = []

    def open_model() -> TextModel:
        opened.append(1)
        if len(opened) == 1:
            raise PanicError
        return TOY

    with_panic = GrammarBuilder(open_model, VOCAB)
    with_panic.start(GenerationId(1), SCHEMA, [])
    with_panic.start(GenerationId(2), SCHEMA, [])
    kinds = {generation: type(made) for generation, made in wait_for(with_panic, 2)}
    with_panic.close()
    assert kinds == {1: Internal, 2: Grammar}


def test_too_many_are_refused(builder: GrammarBuilder) -> None:
    for generation in range(MAX_WAITING):
        builder.start(GenerationId(generation), SCHEMA, [])
    with pytest.raises(QueueFull):
        builder.start(GenerationId(MAX_WAITING), SCHEMA, [])


def slow_builder(lanes: int = 1) -> tuple[GrammarBuilder, threading.Event]:
    """One whose thread is at its first grammar until the event is set."""
    busy, go_on = threading.Event(), threading.Event()

    def open_model() -> TextModel:
        busy.set()
        go_on.wait(20.0)
        return TOY

    made = GrammarBuilder(open_model, VOCAB, lanes)
    made.start(GenerationId(0), SCHEMA, [])
    assert busy.wait(20.0)
    return made, go_on


def test_those_that_were_dropped_do_not_pile_up_before_the_thread() -> None:
    """Each has up to 256 KiB, and one who asks and cancels does not wait for any."""
    slow, go_on = slow_builder()
    for generation in range(1, 1 + 10 * MAX_WAITING):
        slow.start(GenerationId(generation), SCHEMA, [])
        slow.drop(GenerationId(generation))
    assert slow._jobs.qsize() == 1 + AHEAD
    slow.start(GenerationId(9999), SCHEMA, [])
    go_on.set()
    assert [generation for generation, _ in wait_for(slow, 2)] == [0, 9999]
    slow.close()


def test_of_one_class_few_are_made_ahead_and_others_when_a_lane_has_taken_one() -> None:
    builder = GrammarBuilder(lambda: TOY, VOCAB, lanes=2)
    for generation in range(20):
        builder.start(GenerationId(generation), SCHEMA, [], qos=3)
    order = [generation for generation, _ in wait_for(builder, 2 + AHEAD)]
    assert order == list(range(6))
    assert (builder.ahead, builder.waiting) == (6, 14)
    # A higher class has room of its own.
    builder.start(GenerationId(50), SCHEMA, [], qos=0)
    assert [generation for generation, _ in wait_for(builder, 1)] == [50]
    builder.begun(GenerationId(0))
    builder.drop(GenerationId(1))
    assert [generation for generation, _ in wait_for(builder, 2)] == [6, 7]
    assert builder.ready() == []
    builder.close()


def test_one_that_sleeps_is_not_made_and_keeps_none_from_it() -> None:
    builder = GrammarBuilder(lambda: TOY, VOCAB)
    for generation in range(1, 1 + 1 + AHEAD):
        builder.start(GenerationId(generation), SCHEMA, [])
    wait_for(builder, 1 + AHEAD)
    builder.start(GenerationId(9), SCHEMA, [])
    assert builder.sleep(GenerationId(2))
    assert [generation for generation, _ in wait_for(builder, 1)] == [9]
    assert not builder.sleep(GenerationId(77))
    builder.begun(GenerationId(1))
    assert not builder.sleep(GenerationId(1))
    assert (builder.ahead, builder.waiting) == (4, 1)
    builder.wake(GenerationId(2))
    assert [generation for generation, _ in wait_for(builder, 1)] == [2]
    builder.close()


def test_closing_ends_the_thread() -> None:
    builder = GrammarBuilder(lambda: TOY, VOCAB)
    builder.close()
    builder.start(GenerationId(1), SCHEMA, [])
    builder.close()
    assert "grammars" not in {thread.name for thread in threading.enumerate()}
