"""Signals that end a command, also where the exception of one is lost.

A handler's exception is raised wherever the interpreter is just then. Inside a finalizer, such as
that of an answer over HTTP, it is dropped without a word: a loop that waits asks here besides.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType
from typing import NoReturn

#: The signal that came last.
_came: list[int] = []


class Ended(BaseException):
    """SIGTERM or SIGHUP came: a command leaves as after Ctrl-C, so nothing half-started stays."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def end_at_once() -> None:
    """Until `take_signals`, SIGINT ends the process with one line: there is nothing to undo yet."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def take_signals() -> None:
    """Handle SIGINT, SIGTERM and SIGHUP; one that is ignored stays so, as nohup wants it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, _leave):
            signal.signal(number, _end)


def raise_if_ended() -> None:
    """Raise again for a signal that came; for loops that no signal may leave running.

    Raises:
        KeyboardInterrupt: SIGINT came.
        Ended: SIGTERM or SIGHUP came.
    """
    if _came:
        raise _exception(_came.pop())


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # No exception: what is imported may drop it, or make another one of it.
    with suppress(OSError):
        os.write(2, b"error: interrupted\n")
    os._exit(128 + number)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    _came[:] = [number]
    raise _exception(number)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Ended(number)
