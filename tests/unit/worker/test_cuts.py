"""Top-k, min-p and top-p against hand-computed sets and their definition by a full sort."""

from __future__ import annotations

import numpy as np
import pytest

from agent.worker.counter_random import gumbel, position_state
from agent.worker.cuts import Cuts
from agent.worker.ranking import floor_of_largest, largest
from agent.worker.sampler import Logits, sample
from bus.messages.sampling import SamplingParams
from tests.harness.draw_states import logits_of, make_state


def kept(scaled: Logits, rule: SamplingParams, tokens: range | np.ndarray) -> list[int]:
    cuts = Cuts(scaled, rule)
    return [t for t in map(int, tokens) if scaled[t] >= cuts.floor and cuts.keeps(t)]


def kept_by_definition(scaled: Logits, rule: SamplingParams) -> np.ndarray:
    """The ids kept, in falling order, from a sort of the whole vocabulary."""
    order = np.lexsort((np.arange(len(scaled)), -scaled))
    mass = np.cumsum(np.exp(scaled[order]), dtype=np.float64)
    keep = np.ones(len(scaled), bool)
    if rule.top_k:
        keep[rule.top_k :] = False
    if rule.min_p:
        keep &= scaled[order] >= np.float32(np.log(rule.min_p))
    if rule.top_p < 1.0:
        keep[1:] &= mass[:-1] < rule.top_p * mass[-1]
    return order[keep]


FOUR = logits_of(0.4, 0.1, 0.3, 0.2)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (SamplingParams(), [0, 1, 2, 3]),
        (SamplingParams(top_k=1), [0]),
        (SamplingParams(top_k=2), [0, 2]),
        (SamplingParams(top_k=4), [0, 1, 2, 3]),
        (SamplingParams(top_k=1000), [0, 1, 2, 3]),
        (SamplingParams(top_p=0.0), [0]),
        (SamplingParams(top_p=0.39), [0]),
        (SamplingParams(top_p=0.41), [0, 2]),
        (SamplingParams(top_p=0.69), [0, 2]),
        (SamplingParams(top_p=0.71), [0, 2, 3]),
        (SamplingParams(top_p=0.91), [0, 1, 2, 3]),
        (SamplingParams(min_p=0.24), [0, 1, 2, 3]),
        (SamplingParams(min_p=0.26), [0, 2, 3]),
        (SamplingParams(min_p=0.74), [0, 2]),
        (SamplingParams(min_p=1.0), [0]),
        # 0.4 and 0.3 of all are 0.7 of it: measured within the top 2 they would be 1.
        (SamplingParams(top_k=2, top_p=0.39), [0]),
        (SamplingParams(top_k=2, top_p=0.9), [0, 2]),
        (SamplingParams(top_k=3, min_p=0.74, top_p=0.95), [0, 2]),
    ],
)
def test_cuts(rule: SamplingParams, expected: list[int]) -> None:
    assert kept(FOUR, rule, range(4)) == expected


def test_equal_logits_rank_by_token_id() -> None:
    flat = np.zeros(8, np.float32)
    assert kept(flat, SamplingParams(top_k=3), range(8)) == [0, 1, 2]
    assert kept(flat, SamplingParams(top_p=0.30), range(8)) == [0, 1, 2]
    assert sorted(largest(np.array([1, 2, 1, 2, 1], np.float32), 3).tolist()) == [0, 1, 3]


def test_top_p_over_a_flat_distribution() -> None:
    flat = np.zeros(10_000, np.float32)
    around = np.arange(4900, 5100)
    assert kept(flat, SamplingParams(top_p=0.5), around) == list(range(4900, 5000))


def test_the_floor_of_the_largest_is_reached_by_so_many() -> None:
    rng = np.random.default_rng(4)
    for count in (1, 5, 40, 93, 94, 3000):
        values = np.round(rng.normal(size=3000) * 3).astype(np.float32)
        floor = floor_of_largest(values, count)
        assert np.count_nonzero(values >= floor) >= count
        assert floor <= np.sort(values)[-count]


def random_rule(rng: np.random.Generator) -> SamplingParams:
    return SamplingParams(
        top_k=int(rng.choice([0, 1, 40, 93, 94, 2999])),
        top_p=float(rng.choice([1.0, 0.999, 0.9, 0.3, 0.0])),
        min_p=float(rng.choice([0.0, 0.001, 0.2])),
        seed=int(rng.integers(2**63)),
    )


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 8.0])
def test_cuts_equal_their_definition_by_a_full_sort(spread: float) -> None:
    rng = np.random.default_rng(12)
    for _ in range(30):
        logits = np.round(rng.normal(size=3000) * spread, 2)
        scaled = (logits - logits.max()).astype(np.float32)
        rule = random_rule(rng)
        expected = kept_by_definition(scaled, rule)
        order = np.lexsort((np.arange(3000), -scaled))
        border = order[max(len(expected) - 3, 0) : len(expected) + 3]
        looked_at = np.union1d(border, rng.integers(3000, size=20))
        assert kept(scaled, rule, looked_at) == np.intersect1d(looked_at, expected).tolist()


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 8.0])
@pytest.mark.parametrize("vocab", [5, 3000, 40_000])
def test_the_winner_is_the_best_of_those_that_the_definition_keeps(
    vocab: int, spread: float
) -> None:
    # Pools of every size, and winners that a cut does not keep.
    rng = np.random.default_rng(13)
    for position in range(25):
        logits = np.round(rng.normal(size=vocab) * spread, 2).astype(np.float32)
        rule = random_rule(rng)
        scaled = logits - logits.max()
        ids = kept_by_definition(scaled, rule)
        score = scaled[ids] + gumbel(position_state(rule.seed, position), ids)
        drawn = sample(logits[None], [make_state(rule, vocab)], [position])[0]
        assert drawn.token == int(ids[score.argmax()])


@pytest.mark.parametrize("kept_tokens", [100, 4000, 12_000])
def test_min_p_holds_among_the_unlikely(kept_tokens: int) -> None:
    # e^-8.5 of the best is above 1e-4 and e^-9.5 below: what is below has a large share of all.
    logits = np.full(40_000, -9.5, np.float32)
    logits[: kept_tokens + 1] = -8.5
    logits[0] = 0.0
    rule = SamplingParams(min_p=1e-4)
    score = logits[: kept_tokens + 1].astype(np.float64)
    for position in range(40):
        noise = gumbel(position_state(0, position), np.arange(kept_tokens + 1))
        drawn = sample(logits[None], [make_state(rule, 40_000)], [position])[0]
        assert drawn.token == int((score + noise).argmax())
