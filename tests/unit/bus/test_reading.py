"""One go of reading ends after so many frames, bytes or seconds, whichever is first."""

from __future__ import annotations

from bus.transport.reading import MAX_BYTES, MAX_FRAMES, MAX_S, ReadBudget


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_small_cheap_frames_are_counted() -> None:
    budget = ReadBudget(Clock())
    assert [budget.spend(1) for _ in range(MAX_FRAMES)] == [True] * (MAX_FRAMES - 1) + [False]


def test_bytes_are_counted() -> None:
    budget = ReadBudget(Clock())
    assert budget.spend(MAX_BYTES - 1)
    assert not budget.spend(1)


def test_time_that_the_frames_cost_is_counted() -> None:
    clock = Clock()
    budget = ReadBudget(clock)
    clock.at += MAX_S / 2
    assert budget.spend(1)
    clock.at += MAX_S
    assert not budget.spend(1)
