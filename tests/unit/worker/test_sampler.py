"""Sampling against hand-computed sets and the exact distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from agent.worker.counter_random import (
    gumbel,
    indices_from,
    least_word,
    position_state,
    word,
    words,
)
from agent.worker.cuts import Cuts
from agent.worker.sampler import Logits
from agent.worker.sampler import sample as sample_rows
from bus.messages.sampling import SamplingParams
from tests.harness.draw_states import logits_of, make_state

GREEDY = SamplingParams(temperature=0.0)


def sample(
    logits: Logits, params: Sequence[SamplingParams], positions: Sequence[int]
) -> list[int | None]:
    """The tokens that states of nothing but `params` give."""
    states = [make_state(rule, logits.shape[1]) for rule in params]
    return [drawn.token for drawn in sample_rows(logits, states, positions)]


# --- the counter --------------------------------------------------------------------------------


def test_words_are_splitmix64() -> None:
    # The first outputs for the seed 1234567, as published with the reference implementation.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert words(1234567, np.arange(5)).tolist() == expected
    assert [word(1234567, index) for index in range(5)] == expected


@pytest.mark.parametrize("count", [1, 50, 32768, 70_001])
def test_no_index_with_a_large_word_is_left_out(count: int) -> None:
    state = position_state(3, count)
    all_words = words(state, np.arange(count))
    for least in (0, 2**63, 2**64 - 2**50, 2**64 - 1):
        found = indices_from(state, count, least)
        expected = np.flatnonzero(all_words >= np.uint64(least))
        assert np.isin(expected, found).all()
        assert (np.diff(found) > 0).all()
        # Only the high 31 bits are compared: hardly any are too many.
        assert len(found) <= len(expected) + 2


def test_gumbel_noise_has_the_mean_and_spread_of_its_distribution() -> None:
    noise = gumbel(position_state(1, 2), np.arange(200_000))
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772156649, abs=0.01)  # Euler's constant
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_positions_and_seeds_have_streams_of_their_own() -> None:
    states = {position_state(seed, position) for seed in range(50) for position in range(50)}
    assert len(states) == 2500


# --- greedy -------------------------------------------------------------------------------------


def test_temperature_zero_is_argmax_and_ties_go_to_the_lowest_id() -> None:
    logits = np.array([[1, 3, 3, 0], [-5, -7, -5, -5]], np.float32)
    assert sample(logits, [GREEDY, GREEDY], [0, 0]) == [1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_are_no_numbers_give_none_and_leave_others_alone(
    bad: float, temperature: float
) -> None:
    logits = np.zeros((3, 4), np.float32)
    logits[:, 2] = 100.0
    logits[1, :] = bad
    rules = [SamplingParams(temperature=temperature)] * 3
    assert sample(logits, rules, [0, 1, 2]) == [2, None, 2]


def test_one_nan_among_numbers_is_found() -> None:
    logits = np.zeros((1, 1000), np.float32)
    logits[0, 777] = math.nan
    assert sample(logits, [SamplingParams()], [0]) == [None]


def test_masked_entries_are_never_drawn() -> None:
    logits = np.full((1, 50), -math.inf, np.float32)
    logits[0, [3, 30]] = 0.0
    drawn = {sample(logits, [SamplingParams()], [position])[0] for position in range(100)}
    assert drawn == {3, 30}


def test_a_tiny_temperature_is_argmax() -> None:
    logits = np.array([[1.0, 1.001, 0.0]], np.float32)
    for temperature in (1e-300, 1e-6, 1e-5):
        rule = SamplingParams(temperature=temperature)
        assert {sample(logits, [rule], [position])[0] for position in range(100)} == {1}


# --- draws ----------------------------------------------------------------------------------------


def test_temperature_applies_before_top_p() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1]], np.float32))
    # At temperature 1, 0.6 of all is one token; at 100 the three are nearly even.
    rules = [SamplingParams(temperature=t, top_p=0.6) for t in (1.0, 100.0)]
    drawn = [{sample(logits, [rule], [p])[0] for p in range(200)} for rule in rules]
    assert drawn == [{0}, {0, 1}]


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("rule", "limit"),
    [
        # The 99.9th percentile of chi-square with 9, 9 and 4 degrees of freedom.
        (SamplingParams(temperature=1.0), 27.88),
        (SamplingParams(temperature=0.5), 27.88),
        (SamplingParams(temperature=1.3, top_k=5), 18.47),
    ],
)
def test_draws_follow_the_softmax_over_the_candidates(rule: SamplingParams, limit: float) -> None:
    logits = np.array([[2.0, 1.5, 1.2, 0.8, 0.5, 0.2, 0.0, -0.3, -0.5, -1.0]], np.float32)
    counts = np.zeros(10)
    for position in range(20_000):
        token = sample(logits, [rule], [position])[0]
        assert token is not None
        counts[token] += 1
    weights = np.exp(logits[0].astype(np.float64) / rule.temperature)
    kept = slice(None, rule.top_k or None)
    assert counts[kept].sum() == 20_000
    assert chi_square(counts[kept], weights[kept] / weights[kept].sum()) < limit


def test_draws_over_seeds_follow_the_softmax_too() -> None:
    logits = logits_of(0.5, 0.25, 0.125, 0.125)[None]
    counts = np.zeros(4)
    for seed in range(8000):
        token = sample(logits, [SamplingParams(seed=seed)], [17])[0]
        assert token is not None
        counts[token] += 1
    assert chi_square(counts, np.array([0.5, 0.25, 0.125, 0.125])) < 16.27  # 3 degrees, 99.9 %


def test_a_draw_depends_on_neither_its_row_nor_its_neighbours() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(8, 3000)).astype(np.float32) * 3
    rules = [
        GREEDY,
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_k=50),
        SamplingParams(seed=3, top_p=0.9),
        SamplingParams(seed=4, min_p=0.05, temperature=0.7),
        SamplingParams(seed=2**64 - 1, temperature=1.5),
        SamplingParams(seed=6, top_k=40, top_p=0.95, min_p=0.01),
        GREEDY,
    ]
    positions = [3, 1, 4, 1, 5, 9, 2, 2**31]
    together = sample(logits, rules, positions)
    alone = [sample(logits[i : i + 1].copy(), [rules[i]], [positions[i]])[0] for i in range(8)]
    assert together == alone
    order = [5, 2, 7, 0, 6, 1, 3, 4]
    shuffled = sample(logits[order], [rules[i] for i in order], [positions[i] for i in order])
    assert shuffled == [together[i] for i in order]


def test_looking_at_likely_tokens_first_finds_the_same_winner() -> None:
    rng = np.random.default_rng(8)
    for spread in (0.1, 3.0, 12.0):
        logits = rng.normal(size=(1, 5000)).astype(np.float32) * np.float32(spread)
        for position in range(200):
            rule = SamplingParams(seed=11)
            noise = gumbel(position_state(11, position), np.arange(5000))
            assert sample(logits, [rule], [position]) == [int((logits[0] + noise).argmax())]


@pytest.mark.parametrize("noise", [-3.0, 0.0, 5.0, 20.0, 36.0, 50.0])
def test_no_word_below_the_least_has_more_noise(noise: float) -> None:
    least = least_word(noise)
    assert 0 <= least < 2**64
    # The noise of the word before the least, by the definition.
    before = max(least - 1, 0) >> 11
    assert -math.log(-math.log((before + 0.5) * 2.0**-53)) <= noise or least == 0


def test_cuts_do_not_change_a_draw_that_they_keep() -> None:
    # The noise belongs to the token id, so a cut that keeps the winner keeps the result.
    rng = np.random.default_rng(6)
    logits = rng.normal(size=(1, 500)).astype(np.float32) * 4
    for position in range(200):
        free = sample(logits, [SamplingParams(seed=9)], [position])[0]
        rule = SamplingParams(seed=9, top_k=400, top_p=0.9999, min_p=1e-6)
        cut = sample(logits, [rule], [position])[0]
        assert free == cut or not Cuts(logits[0] - logits.max(), rule).keeps(int(free or 0))
