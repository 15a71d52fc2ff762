"""What wakes supervisord."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator

import pytest

from head.prompt_restart import SignalWakeup


@pytest.fixture
def wakeup() -> Iterator[SignalWakeup]:
    made = SignalWakeup()
    handler = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    before = signal.set_wakeup_fd(-1)
    made.attach()
    yield made
    signal.set_wakeup_fd(before)
    signal.signal(signal.SIGUSR1, handler)
    made.close()


def polls(wakeup: SignalWakeup) -> int:
    """How often the poll would come back at once."""
    count = 0
    while select.select([wakeup], [], [], 0)[0]:
        wakeup.handle_read_event()
        count += 1
    return count


def test_a_signal_gives_two_turns_and_no_more(wakeup: SignalWakeup) -> None:
    assert polls(wakeup) == 0
    signal.raise_signal(signal.SIGUSR1)
    assert polls(wakeup) == 2
    for _ in range(5):
        signal.raise_signal(signal.SIGUSR1)
    assert polls(wakeup) == 2


def test_more_signals_than_the_socket_takes_still_wake(wakeup: SignalWakeup) -> None:
    for _ in range(5000):
        signal.raise_signal(signal.SIGUSR1)
    assert polls(wakeup) >= 2
