"""Signals that end a command, where their exceptions are lost."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator

import pytest

from head.cli.interrupts import Ended, raise_if_ended, take_signals

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    # As a command finds them, whatever ran in this process before.
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class _Signals(io.RawIOBase):
    """Gets a signal while it is finalized."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def close(self) -> None:
        if not self.closed:
            super().close()
            signal.raise_signal(self._number)


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Ended), (signal.SIGHUP, Ended)],
)
def test_a_signal_that_comes_in_a_finalizer_is_raised_afterwards(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    take_signals()
    dropped = _Signals(number)
    del dropped  # io.IOBase drops what its finalizer raises.
    with pytest.raises(raised):
        raise_if_ended()
    raise_if_ended()


def test_a_signal_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    take_signals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.raise_signal(signal.SIGHUP)
    raise_if_ended()
