"""Which token may follow: pairs of timestamps that never go back, and lists that are never said."""

from __future__ import annotations

import numpy as np
import pytest

from agent.models.transcriber_figures import TranscriberFigures
from agent.worker.timestamp_rules import TimestampRules, log_softmax

#: Text is 0 to 9, the end 10, then control tokens, 0.00 s is 20 and 2.00 s 120.
FIGURES = TranscriberFigures(
    mels=80,
    audio_positions=1500,
    begin=11,
    end=10,
    transcribe=-1,
    no_speech=12,
    no_timestamps=19,
    first_timestamp=20,
    suppressed=(3, 11, 12),
    suppressed_first=(0, 10),
    languages={"en": -1},
)
VOCAB = 121


def may_follow(*tokens: int, likely: int = 5) -> set[int]:
    """What may follow where one token is by far the likeliest."""
    logits = np.zeros(VOCAB, np.float32)
    logits[likely] = 20
    return {
        int(token) for token in np.flatnonzero(TimestampRules(FIGURES).apply(logits, tokens) > -9)
    }


def test_a_transcript_opens_with_a_time_of_the_first_second() -> None:
    assert may_follow() == {*range(20, 71)}


def test_text_follows_an_opening_time() -> None:
    assert may_follow(20) == {0, 1, 2, 4, 5, 6, 7, 8, 9, *range(10, 19)} - {11, 12}


def test_text_goes_on_or_is_closed_by_a_later_time() -> None:
    assert may_follow(30, 5) == ({*range(19)} - {3, 11, 12}) | {*range(31, 121)}


def test_a_closing_time_is_followed_by_an_opening_one_or_the_end() -> None:
    assert may_follow(30, 5, 50, likely=60) == {*range(50, 121)}
    found = may_follow(30, 5, 50, likely=10)
    assert found == {10, *range(13, 19), *range(50, 121)}


def test_text_follows_a_pair_of_times() -> None:
    assert may_follow(30, 5, 50, 50) == {*range(19)} - {3, 11, 12}


def test_times_that_are_likelier_together_go_before_any_word() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[5] = 4.0  # e^4 is 54.6, and 90 timestamps of 1 are more.
    allowed = TimestampRules(FIGURES).apply(logits, [30, 5])
    assert (allowed[:20] == -np.inf).all()
    logits[5] = 4.6  # e^4.6 is 99.5.
    assert int(TimestampRules(FIGURES).apply(logits, [30, 5]).argmax()) == 5


def test_logits_are_not_changed() -> None:
    logits = np.ones(VOCAB, np.float32)
    TimestampRules(FIGURES).apply(logits, [])
    assert (logits == 1).all()


def test_log_softmax_is_the_logarithm_of_shares() -> None:
    found = np.exp(log_softmax(np.log(np.array([1, 3, 4], np.float32))))
    assert found.tolist() == pytest.approx([0.125, 0.375, 0.5])
    assert log_softmax(np.array([0.0, -np.inf], np.float32)).tolist() == [0.0, -np.inf]
