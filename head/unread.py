"""Answers that nobody reads any more: one that is not to be kept ends after a grace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bus.timers import Timers
from head.answers import Answer

#: Ends an answer at what it has: answer, now.
Cancel = Callable[[Answer, float], None]


class UnreadAnswers:
    """Owned by the core.

    Args:
        grace_s: how long an answer waits for its client to come back.
        timers: for the end of that.
        cancel: ends it then.
    """

    def __init__(self, *, grace_s: float, timers: Timers, cancel: Cancel) -> None:
        self._grace_s = grace_s
        self._timers = timers
        self._cancel = cancel

    def reader_gone(self, answer: Answer, now: float, *, left: bool = False) -> None:
        """A reader went away.

        Args:
            left: it said goodbye, so that it is not waited for.
        """
        if answer.keep or answer.ended:
            return
        answer.unread_s = now
        if left:
            self._end(answer, now, now)
        else:
            self._timers.at(now + self._grace_s, partial(self._end, answer, now))

    def _end(self, answer: Answer, since_s: float, now: float) -> None:
        # A reader that came meanwhile and went again has its whole time anew.
        if answer.unread_s == since_s and not answer.subscriptions and not answer.ended:
            self._cancel(answer, now)
