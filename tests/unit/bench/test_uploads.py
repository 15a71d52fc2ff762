"""What the bench of files and prompts makes of the times that it saw."""

from __future__ import annotations

from bench.uploads import PROMPT_BYTES, Side, Stretch, long_text, quantile


def test_quantiles_are_values_that_were_seen() -> None:
    values = [float(value) for value in range(100)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50, 99, 99)
    assert quantile([7.0], 0.99) == 7.0
    assert quantile([], 0.5) == 0.0


def test_a_side_has_the_median_of_stretches_and_the_latest_heartbeat() -> None:
    side = Side()
    for gaps, late in (([10.0, 20.0, 90.0], [0.0, 51.0]), ([10.0, 30.0], [2.0]), ([40.0], [])):
        side.stretches.append(Stretch(seconds=1.0, gaps_ms=gaps, late_ms=late, tokens_per_s=5.0))
    found = side.figures()
    assert (found["inter_token_p50_ms"], found["inter_token_p99_ms"]) == (30.0, 40.0)
    assert found["longest_gap_ms"] == 90.0
    assert (found["heartbeats"], found["heartbeats_late"]) == (3, 1)
    assert found["heartbeat_late_max_ms"] == 51.0


def test_long_texts_have_the_length_and_no_two_are_alike() -> None:
    first, second = long_text(PROMPT_BYTES, 1), long_text(PROMPT_BYTES, 2)
    assert len(first.encode()) == len(second.encode()) == PROMPT_BYTES
    assert first[:200] != second[:200]
