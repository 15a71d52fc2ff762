"""A window's tokens as stretches of text, and where the next window begins."""

from __future__ import annotations

import pytest

from agent.worker.speech_segments import LEAST_ADVANCE, WINDOW_TICKS, Stretch, split_window
from tests.unit.worker.test_timestamp_rules import FIGURES


def at(tick: int) -> int:
    """The token of a tick."""
    return 20 + tick


@pytest.mark.parametrize(
    ("tokens", "stretches", "advance"),
    [
        # One segment that the end follows: the window is complete.
        ([at(0), 1, 2, at(50)], [(0, 50, (1, 2))], WINDOW_TICKS),
        # Two, the second one complete too.
        (
            [at(5), 1, at(60), at(70), 2, at(90)],
            [(5, 60, (1,)), (70, 90, (2,))],
            WINDOW_TICKS,
        ),
        # A third one is cut off by the window's end: it is heard again, whole.
        (
            [at(5), 1, at(60), at(70), 2, at(90), at(90), 4],
            [(5, 60, (1,)), (70, 90, (2,))],
            90,
        ),
        # A pair at the end: the next window begins there.
        ([at(0), 1, at(60), at(60)], [(0, 60, (1,))], 60),
        # Text without a time behind it goes to the end of the audio.
        ([at(10), 1, 2], [(10, 800, (1, 2))], WINDOW_TICKS),
        # Nothing is said.
        ([at(0)], [], WINDOW_TICKS),
        ([], [], WINDOW_TICKS),
        ([at(0), 1, at(60), at(60), at(60), at(60)], [(0, 60, (1,))], 60),
        # What is behind the audio's end is not said there.
        ([at(0), 1, at(900)], [(0, 800, (1,))], WINDOW_TICKS),
        ([at(0), 1, at(60), at(820), 2, at(900)], [(0, 60, (1,))], WINDOW_TICKS),
        # However near the last pair is, some audio is behind it.
        ([at(0), 1, at(2), at(2), 2], [(0, 2, (1,))], LEAST_ADVANCE),
    ],
)
def test_windows(
    tokens: list[int], stretches: list[tuple[int, int, tuple[int, ...]]], advance: int
) -> None:
    found = split_window(tokens, FIGURES, 800)
    assert found.stretches == tuple(Stretch(*stretch) for stretch in stretches)
    assert found.advance == advance
