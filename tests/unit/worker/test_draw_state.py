"""What ends an answer, what is forbidden and changed before a draw, and parameters at fault."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.worker.draw_state import DrawState, Taken
from agent.worker.sampler import sample
from bus.errors import ConstraintReplayFailed, Invalid
from bus.ids import pack_ids
from bus.messages.sampling import SamplingParams
from tests.harness.draw_states import ListGrammar, make_state

INF = math.inf
EOS, STOP = 6, 7
#: Ids 0 to 5; EOS and STOP say nothing.
WORDS = (b"a", b"b", b"ab", b"\xc3", b"\xa9", b"stop", b"", b"")
GO_ON, ENDS_EOS, ENDS_STOP = Taken(), Taken("eos"), Taken("stop")


def adjusted(state: DrawState, *logits: float) -> list[float]:
    values: list[float] = state.adjusted(np.array(logits, np.float32)).tolist()
    return values


# --- ends ---------------------------------------------------------------------------------------


def test_an_end_of_sequence_id_ends_unless_it_is_ignored() -> None:
    state = make_state(SamplingParams(), 8, eos_ids=[EOS])
    assert [state.take(0), state.take(EOS)] == [GO_ON, ENDS_EOS]
    ignoring = make_state(SamplingParams(ignore_eos=True), 8, eos_ids=[EOS])
    assert ignoring.take(EOS) == GO_ON


def test_a_stop_id_ends_even_when_it_is_an_ignored_end_of_sequence() -> None:
    params = SamplingParams(ignore_eos=True, stop_ids=pack_ids([EOS, STOP]))
    assert make_state(params, 8, eos_ids=[EOS]).take(STOP) == ENDS_STOP
    assert make_state(params, 8, eos_ids=[EOS]).take(EOS) == ENDS_STOP
    both = SamplingParams(stop_ids=pack_ids([EOS]))
    assert make_state(both, 8, eos_ids=[EOS]).take(EOS) == ENDS_EOS


def test_a_stop_string_ends_with_the_token_that_completes_it() -> None:
    state = make_state(SamplingParams(stop=("ba", "é")), 8, vocabulary=WORDS)
    assert [state.take(token) for token in (0, 0, 1, 2)] == [GO_ON] * 3 + [Taken("stop", "ba")]
    # A character's second byte is what completes it.
    state = make_state(SamplingParams(stop=("é",)), 8, vocabulary=WORDS)
    assert [state.take(token) for token in (3, 4)] == [GO_ON, Taken("stop", "é")]


def test_an_answer_that_began_elsewhere_goes_on_within_a_stop_string() -> None:
    params = SamplingParams(stop=("aab",))
    state = make_state(params, 8, prompt=[1, 1], generated=[0, 0], vocabulary=WORDS)
    assert state.take(1) == Taken("stop", "aab")
    # The prompt's text is no part of the answer's.
    assert make_state(params, 8, prompt=[0, 0], vocabulary=WORDS).take(1) == GO_ON


def test_stop_strings_do_not_look_at_the_text_of_the_least_tokens() -> None:
    params = SamplingParams(stop=("ab",), min_tokens=3)
    state = make_state(params, 8, vocabulary=WORDS)
    assert [state.take(token) for token in (0, 1, 0, 1, 2)] == [GO_ON] * 4 + [Taken("stop", "ab")]


def test_a_grammar_that_stopped_ends_with_its_last_token() -> None:
    state = make_state(SamplingParams(), 8, grammar=ListGrammar([[0], [1]], 8))
    assert [state.take(0), state.take(1)] == [GO_ON, ENDS_STOP]


def test_a_token_that_the_grammar_refuses_is_said_by_its_error() -> None:
    with pytest.raises(ConstraintReplayFailed):
        make_state(SamplingParams(), 8, grammar=ListGrammar([[0]], 8)).take(1)


def test_the_vocabulary_is_asked_for_only_by_stop_strings() -> None:
    def no_vocabulary() -> tuple[bytes, ...]:
        raise AssertionError

    DrawState(
        SamplingParams(stop_ids=pack_ids([1])),
        vocab=8,
        eos_ids=(),
        special_ids=frozenset(),
        prompt=[1],
        generated=[2],
        vocabulary=no_vocabulary,
        grammar=None,
    )


# --- what is forbidden and changed --------------------------------------------------------------


def test_ends_are_forbidden_before_the_least_tokens() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_ids=pack_ids([1, 999]))
    state = make_state(params, 4, eos_ids=[3, 1000])
    for _ in range(2):
        assert state.adjusts
        assert adjusted(state, 1, 2, 3, 4) == [1, -INF, 3, -INF]
        state.take(0)
    assert not state.adjusts
    # Those of earlier generations count, and an ignored end of sequence is no end.
    assert not make_state(params, 4, eos_ids=[3], generated=[0, 0]).adjusts
    ignoring = SamplingParams(min_tokens=1, ignore_eos=True)
    assert adjusted(make_state(ignoring, 4, eos_ids=[3]), 1, 2, 3, 4) == [1, 2, 3, 4]


def test_a_grammar_that_allows_nothing_but_an_end_goes_before_the_least_tokens() -> None:
    params = SamplingParams(min_tokens=5)
    free = make_state(params, 4, eos_ids=[3], grammar=ListGrammar([[1, 3]], 4))
    assert adjusted(free, 1, 2, 3, 4) == [-INF, 2, -INF, -INF]
    bound = make_state(params, 4, eos_ids=[3], grammar=ListGrammar([[3]], 4))
    assert adjusted(bound, 1, 2, 3, 4) == [-INF, -INF, -INF, 4]


@pytest.mark.parametrize("vocab_of_mask", [40, 33, 64, 1000])
def test_a_mask_may_be_longer_or_shorter_than_the_logits(vocab_of_mask: int) -> None:
    # 70 logits: those beyond the mask's tokenizer are forbidden.
    state = make_state(SamplingParams(), 70, grammar=ListGrammar([[0, 31, 32]], vocab_of_mask))
    values = state.adjusted(np.arange(70, dtype=np.float32))
    assert np.flatnonzero(np.isfinite(values)).tolist() == [0, 31, 32]
    assert values[[0, 31, 32]].tolist() == [0, 31, 32]


def test_bias_is_added_and_then_penalties_apply() -> None:
    params = SamplingParams(
        bias_ids=pack_ids([0, 2]), biases=(1.5, -4.0), repetition_penalty=2.0, presence_penalty=0.25
    )
    state = make_state(params, 4, prompt=[0, 2], generated=[3])
    # (0.5 + 1.5) / 2; untouched; (1 - 4) * 2; 8 / 2 - 0.25.
    assert adjusted(state, 0.5, 1.0, 1.0, 8.0) == [1.0, 1.0, -6.0, 3.75]


def test_logits_that_are_handed_in_stay_as_they_are() -> None:
    logits = np.array([[1.0, 2.0, 3.0]], np.float32)
    for grammar in (None, ListGrammar([[1]], 3)):
        params = SamplingParams(bias_ids=pack_ids([2]), biases=(9.0,), presence_penalty=1.0)
        state = make_state(params, 3, generated=[1], grammar=grammar)
        sample(logits, [state], [0])
        assert logits.tolist() == [[1.0, 2.0, 3.0]]


def test_nothing_asked_for_changes_nothing() -> None:
    assert make_state(SamplingParams(temperature=0.0), 8, prompt=[1], generated=[2]).plain
    assert not make_state(SamplingParams(), 8).adjusts
    for params in (
        SamplingParams(temperature=0.0, logprobs=1),
        SamplingParams(temperature=0.0, min_tokens=1),
        SamplingParams(temperature=0.0, frequency_penalty=0.1),
        SamplingParams(temperature=0.5),
    ):
        assert not make_state(params, 8).plain


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (SamplingParams(temperature=math.nan), "temperature"),
        (SamplingParams(temperature=-1.0), "temperature"),
        (SamplingParams(temperature=INF), "temperature"),
        (SamplingParams(top_p=1.5), "top_p"),
        (SamplingParams(min_p=math.nan), "min_p"),
        (SamplingParams(top_k=-1), "top_k"),
        (SamplingParams(repetition_penalty=0.0), "repetition_penalty"),
        (SamplingParams(presence_penalty=INF), "presence_penalty"),
        (SamplingParams(frequency_penalty=math.nan), "frequency_penalty"),
        (SamplingParams(bias_ids=pack_ids([8]), biases=(1.0,)), "logit_bias"),
        (SamplingParams(bias_ids=pack_ids([1]), biases=(math.nan,)), "logit_bias"),
        (SamplingParams(bias_ids=pack_ids([1, 2]), biases=(1.0,)), "logit_bias"),
        (SamplingParams(biases=(1.0,)), "logit_bias"),
    ],
)
def test_parameters_at_fault_end_their_own_row(params: SamplingParams, param: str) -> None:
    greedy = make_state(SamplingParams(temperature=0.0), 8)
    logits = np.tile(np.arange(8, dtype=np.float32), (3, 1))
    states = [greedy, make_state(params, 8, generated=[1]), greedy]
    first, fault, last = sample(logits, states, [1, 1, 1])
    assert (first.token, last.token) == (7, 7)
    assert fault.token is None
    assert isinstance(fault.error, Invalid)
    assert fault.error.param == param


@pytest.mark.parametrize("bias", [1e4, 1e38, INF])
def test_a_huge_bias_forces_or_forbids(bias: float) -> None:
    logits = np.array([[5.0, 1.0, 9.0]], np.float32)
    forced = SamplingParams(bias_ids=pack_ids([1]), biases=(bias,))
    forbidden = SamplingParams(bias_ids=pack_ids([0, 2]), biases=(-bias, -bias))
    for params in (forced, forbidden):
        state = make_state(params, 3)
        assert {sample(logits, [state], [p])[0].token for p in range(50)} == {1}


# --- a state is a function of prompt and answer ---------------------------------------------------

TOKENS = st.lists(st.integers(0, len(WORDS) - 1), max_size=12)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    ignore_eos=st.booleans(),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.4, -0.3]),
    frequency_penalty=st.sampled_from([0.0, 0.1]),
    min_tokens=st.integers(0, 9),
    stop_ids=st.sampled_from([pack_ids([]), pack_ids([STOP]), pack_ids([1, EOS])]),
    stop=st.lists(st.sampled_from(["a", "ab", "bab", "é", "stops", "pa"]), max_size=3).map(tuple),
    bias_ids=st.just(pack_ids([1, 3])),
    biases=st.just((0.5, -0.5)),
)


@given(params=PARAMS, prompt=TOKENS, answer=TOKENS, rest=TOKENS, constrained=st.booleans())
def test_a_rebuilt_state_equals_one_that_took_the_tokens(
    params: SamplingParams, prompt: list[int], answer: list[int], rest: list[int], constrained: bool
) -> None:
    constrained = constrained and not {EOS, STOP} & {*answer, *rest}

    def state(generated: list[int]) -> DrawState:
        places = [None, [0, 1, 2, 3, 4, 5], *[None] * 30]
        return make_state(
            params,
            8,
            eos_ids=[EOS],
            special_ids=[5],
            prompt=prompt,
            generated=generated,
            vocabulary=WORDS,
            grammar=ListGrammar(places, 8, at=len(generated)) if constrained else None,
        )

    rebuilt, advanced = state(answer), state([])
    for token in answer:
        advanced.take(token)
    logits = np.array([[0.5, -1.0, 2.0, -0.25, 1.0, 3.0, 0.0, 1.5]], np.float32)
    for place, token in enumerate(rest):
        assert rebuilt.adjusts == advanced.adjusts
        assert rebuilt.plain == advanced.plain
        assert np.array_equal(rebuilt.adjusted(logits[0]), advanced.adjusted(logits[0]))
        assert sample(logits, [rebuilt], [place]) == sample(logits, [advanced], [place])
        assert rebuilt.take(token) == advanced.take(token)
