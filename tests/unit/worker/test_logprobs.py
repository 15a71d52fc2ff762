"""Records of log-probabilities: layout by `struct`, numbers by a plain softmax."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from agent.worker.logprobs import LEAST_LOGPROB, NO_TOKEN, record
from agent.worker.sampler import Logits, sample
from bus.ids import pack_ids
from bus.messages.sampling import SamplingParams
from tests.harness.draw_states import ListGrammar, make_state

INF = math.inf


def read(packed: bytes) -> tuple[float, list[tuple[int, float]]]:
    """The chosen token's log-probability, and id and log-probability of the others."""
    chosen, *rest = struct.unpack(f"<f{(len(packed) - 4) // 8 * 'If'}", packed)
    return chosen, list(zip(rest[::2], rest[1::2], strict=True))


def record_of(logits: Logits, chosen: int, others: int) -> tuple[float, list[tuple[int, float]]]:
    return read(record(logits, int(logits.argmax()), chosen, others))


def test_a_record_by_hand() -> None:
    logits = np.log(np.array([0.125, 0.5, 0.25, 0.125])).astype(np.float32)
    chosen, others = record_of(logits, 2, 2)
    assert chosen == pytest.approx(math.log(0.25), abs=1e-6)
    assert [token for token, _ in others] == [1, 0]  # of equals the lower id
    assert [p for _, p in others] == pytest.approx([math.log(0.5), math.log(0.125)], abs=1e-6)
    assert len(record(logits, 1, 2, 2)) == 20
    assert record(logits, 1, 1, 0) == struct.pack("<f", chosen + math.log(2.0))


@pytest.mark.parametrize("others", [0, 1, 5, 20])
@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0])
def test_records_equal_a_plain_softmax(others: int, spread: float) -> None:
    rng = np.random.default_rng(9)
    for vocab in (30, 1000, 5000):
        logits = np.round(rng.normal(size=vocab) * spread, 1).astype(np.float32)
        exact = logits.astype(np.float64)
        exact -= exact.max() + math.log(np.exp(exact - exact.max()).sum())
        ranked = sorted(range(vocab), key=lambda token: (-exact[token], token))
        for chosen in (ranked[0], ranked[3], ranked[-1]):
            value, found = record_of(logits, chosen, others)
            expected = [token for token in ranked if token != chosen][:others]
            assert [token for token, _ in found] == expected
            assert value == pytest.approx(exact[chosen], abs=1e-5)
            assert [p for _, p in found] == pytest.approx(exact[expected].tolist(), abs=1e-5)


def test_forbidden_and_hopeless_tokens_have_finite_numbers() -> None:
    logits = np.array([0.0, -INF, -3e38, -INF], np.float32)
    value, others = record_of(logits, 0, 3)
    assert value == 0.0
    assert others == [(2, LEAST_LOGPROB), (1, LEAST_LOGPROB), (3, LEAST_LOGPROB)]


def test_a_vocabulary_that_is_too_small_fills_up_with_no_token() -> None:
    value, others = record_of(np.zeros(2, np.float32), 1, 4)
    assert value == pytest.approx(-math.log(2.0))
    assert [token for token, _ in others] == [0, *[NO_TOKEN] * 3]
    assert others[0][1] == value
    assert others[1:] == [(NO_TOKEN, LEAST_LOGPROB)] * 3


def test_they_are_of_the_distribution_after_bias_and_penalties_and_before_the_rest() -> None:
    params = SamplingParams(
        temperature=0.3, top_k=1, top_p=0.1, logprobs=3,
        bias_ids=pack_ids([1]), biases=(2.0,), presence_penalty=1.0,
    )  # fmt: skip
    state = make_state(params, 4, generated=[2], grammar=ListGrammar([[], [0, 1, 2]], 4, at=1))
    drawn = sample(np.array([[0.0, 0.0, 3.0, 9.0]], np.float32), [state], [5])[0]
    # Logits are 0, 0 + 2, 3 - 1 and forbidden; of equals the lower id is the one of top-k 1.
    assert drawn.token == 1
    value, others = read(drawn.logprobs)
    total = math.log(1.0 + 2.0 * math.e**2)
    assert value == pytest.approx(2.0 - total, abs=1e-6)
    assert [token for token, _ in others] == [2, 0]
    assert [p for _, p in others] == pytest.approx([2.0 - total, -total], abs=1e-6)


def test_the_chosen_token_is_in_its_own_top_list_and_all_is_finite() -> None:
    # Case S3: constrained, and top-k 1. The top list is the chosen token with the others.
    rng = np.random.default_rng(2)
    logits = (rng.normal(size=(1, 300)) * 20).astype(np.float32)
    for position in range(30):
        grammar = ListGrammar([rng.choice(300, 3, replace=False).tolist()], 300)
        for params in (SamplingParams(logprobs=6), SamplingParams(logprobs=6, top_k=1)):
            for state in (make_state(params, 300, grammar=grammar), make_state(params, 300)):
                drawn = sample(logits, [state], [position])[0]
                value, others = read(drawn.logprobs)
                assert drawn.token not in [token for token, _ in others]
                assert len({token for token, _ in others}) == 5
                numbers = [value, *(p for _, p in others)]
                assert all(math.isfinite(p) and p <= 0.0 for p in numbers)
                falling = numbers[1:]
                assert falling == sorted(falling, reverse=True)


def test_no_record_without_asking() -> None:
    logits = np.zeros((2, 8), np.float32)
    states = [make_state(SamplingParams(logprobs=n), 8) for n in (0, 1)]
    assert [len(drawn.logprobs) for drawn in sample(logits, states, [0, 0])] == [0, 4]
