"""A worker's messages from and to its agent.

They leave in the order they were made. What the pipe does not take is kept, and the worker's loop
waits with its work meanwhile, so nothing grows without a bound and nothing is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from bus.errors import DecodeError
from bus.log import EventLog
from bus.messages.worker import WORKER

log = EventLog(__name__)

#: How long to wait for a message before sending to a full pipe is tried again.
SEND_RETRY_S = 0.005


class Pipe(Protocol):
    """What is needed of `bus.transport.pipes.WorkerPipe`."""

    def recv(self, timeout_s: float | None) -> bytes | None: ...

    def send(self, data: bytes) -> bool: ...


class Mailbox:
    """Encodes and decodes over a pipe. Owns what has not left yet."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._outbox: deque[bytes] = deque()

    @property
    def is_full(self) -> bool:
        """Whether something has not left: do no work until it has, and try again soon."""
        return bool(self._outbox)

    def post(self, message: object) -> None:
        """Send a message, or keep it until the pipe takes it."""
        self._outbox.append(WORKER.encode(message))
        self.send()

    def send(self) -> None:
        """Send what was kept, as far as the pipe takes it."""
        while self._outbox and self._pipe.send(self._outbox[0]):
            self._outbox.popleft()

    def receive(self, wait_s: float | None) -> Iterator[object]:
        """Messages that are there, and those that come meanwhile; one that is none is logged.

        Args:
            wait_s: how long to wait for the first; None is for ever.
        """
        data = self._pipe.recv(wait_s)
        while data is not None:
            try:
                message = WORKER.decode(data)
            except DecodeError as error:
                log.error("message_unreadable", error=error)
            else:
                yield message
            data = self._pipe.recv(0.0)
