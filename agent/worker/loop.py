"""The loop of a worker process, whatever its model makes: messages in, work, messages out.

Between any two units of work the pipe is emptied, so a cancel waits for no more than one. With
nothing to do the loop blocks on the pipe. Messages leave in the order they were made; when the
agent does not take them, the loop waits with its work too, so nothing grows without a bound and
nothing is dropped. While it works the agent hears its counters each second.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from agent.worker.mailbox import SEND_RETRY_S, Mailbox, Pipe
from agent.worker.refusal import refused_run
from bus.errors import SuperfluidError
from bus.messages.worker import UNASKED, Accepted, Output, Pong, Stop, Submit, WorkerStats

#: While there is work, the agent is told of progress at least this often, between two units of it.
REPORT_S = 1.0


class WorkerLoop(ABC):
    """Answers an agent. What the work is, and what other messages mean, is a subclass's.

    Args:
        pipe: to the agent.
        clock: gives `now`.
    """

    def __init__(self, pipe: Pipe, clock: Callable[[], float]) -> None:
        self._mailbox = Mailbox(pipe)
        self._clock = clock
        self._stopped = False
        #: When the agent is to be told the counters if there is work.
        self._report_at = 0.0

    def run(self) -> None:
        """Work until the agent says stop."""
        while not self._stopped:
            self._receive(SEND_RETRY_S if self._mailbox.is_full else self._wait_s())
            self._mailbox.send()
            if not self._mailbox.is_full:
                self._report()
                self._turn()

    def post(self, message: object) -> None:
        """Send a message, or keep it until the pipe takes it."""
        self._mailbox.post(message)

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether there is nothing to run."""

    @abstractmethod
    def stats(self) -> WorkerStats:
        """Counters since the start, and what holds now."""

    @abstractmethod
    def _wait_s(self) -> float | None:
        """How long the pipe may be waited on; None is for ever."""

    @abstractmethod
    def _turn(self) -> None:
        """Do a unit of work, if there is one, and post what came of it."""

    @abstractmethod
    def _handle(self, message: object) -> None:
        """Do what a message says that is no Stop."""

    def _receive(self, wait_s: float | None) -> None:
        for message in self._mailbox.receive(wait_s):
            if isinstance(message, Stop):
                self._stopped = True
                return
            self._handle(message)

    def _report(self) -> None:
        """Tell that work begins, and then each second what has become of it."""
        now = self._clock()
        if self.idle:
            self._report_at = now
        elif now >= self._report_at:
            self._report_at = now + REPORT_S
            self.post(Pong(nonce=UNASKED, stats=self.stats()))

    def _refuse(self, submit: Submit, error: SuperfluidError) -> None:
        """Nowhere: what the request asks for can not be done with this model."""
        self.post(Accepted(generation=submit.generation))
        self.post(Output(runs=(refused_run(submit, error),), stats=self.stats()))
