"""Penalties against hand-computed logits and a plain reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from agent.worker.penalties import Penalties, penalises
from bus.messages.sampling import SamplingParams


def applied(
    params: SamplingParams,
    logits: Sequence[float],
    *,
    prompt: Sequence[int] = (),
    generated: Sequence[int] = (),
    special: Sequence[int] = (),
) -> list[float]:
    penalties = Penalties(
        params,
        vocab=len(logits),
        special_ids=frozenset(special),
        prompt=prompt,
        generated=generated,
    )
    row = np.array(logits, np.float32)
    penalties.apply(row)
    values: list[float] = row.tolist()
    return values


def reference(
    params: SamplingParams,
    logits: Sequence[float],
    prompt: Sequence[int],
    generated: Sequence[int],
    special: Sequence[int],
) -> list[float]:
    """By the definition, token by token, in float64."""
    values = []
    for token, logit in enumerate(logits):
        value = float(logit)
        if token not in special:
            if token in [*prompt, *generated]:
                repetition = params.repetition_penalty
                value = value / repetition if value > 0 else value * repetition
            count = list(generated).count(token)
            value -= params.frequency_penalty * count
            value -= params.presence_penalty if count else 0.0
        values.append(value)
    return values


def test_repetition_looks_at_the_whole_context_once_per_token() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    values = applied(params, [4.0, -3.0, 6.0, 1.0], prompt=[0, 0, 1], generated=[1, 2, 2, 2])
    assert values == [2.0, -6.0, 3.0, 1.0]


def test_presence_and_frequency_look_at_the_answer_alone() -> None:
    presence = SamplingParams(presence_penalty=0.5)
    assert applied(presence, [1, 1, 1], prompt=[0, 0], generated=[1, 2, 2]) == [1, 0.5, 0.5]
    frequency = SamplingParams(frequency_penalty=0.5)
    assert applied(frequency, [1, 1, 1], prompt=[0, 0], generated=[1, 2, 2]) == [1, 0.5, 0.0]
    rewarding = SamplingParams(presence_penalty=-2.0)
    assert applied(rewarding, [1, 1], generated=[1]) == [1, 3]


def test_control_tokens_and_ids_beyond_the_vocabulary_are_exempt() -> None:
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0)
    values = applied(params, [8, 8, 8], prompt=[0, 2, 77], generated=[0, 0, 99], special=[0])
    assert values == [8, 8, 4]
    penalties = Penalties(params, vocab=3, special_ids=frozenset([0]), prompt=(), generated=())
    for token in (0, 3, 99, -1):
        penalties.take(token)
    row = np.full(3, 8.0, np.float32)
    penalties.apply(row)
    assert row.tolist() == [8, 8, 8]


@pytest.mark.parametrize("seed", range(5))
def test_many_tokens_taken_one_by_one_equal_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab = 2000
    prompt, generated = rng.integers(vocab, size=100), rng.integers(vocab, size=700)
    special = [3, int(prompt[0]), int(generated[0])]
    params = SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25)
    penalties = Penalties(
        params,
        vocab=vocab,
        special_ids=frozenset(special),
        prompt=prompt.tolist(),
        generated=generated[:50].tolist(),
    )
    for token in generated[50:].tolist():  # more than there was room for at first
        penalties.take(token)
    logits = rng.normal(size=vocab).astype(np.float32) * 5
    expected = reference(params, logits.tolist(), prompt.tolist(), generated.tolist(), special)
    penalties.apply(logits)
    assert np.allclose(logits, expected, rtol=1e-6, atol=1e-6)


def test_neutral_penalties_penalise_nothing() -> None:
    assert not penalises(SamplingParams())
    assert penalises(SamplingParams(repetition_penalty=0.9))
    assert penalises(SamplingParams(presence_penalty=-0.1))
    assert penalises(SamplingParams(frequency_penalty=0.1))
