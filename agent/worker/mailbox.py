"""A worker's messages from and to its agent.

They leave in the order they were made. What the pipe does not take is kept, and the worker's loop
waits with its work meanwhile, so nothing grows without a bound and nothing is dropped. A submit
that can not be read is rejected when it can be told whose it is, so nobody waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from agent.worker.refusal import rejected
from bus.errors import DecodeError, Invalid
from bus.ids import U64_MAX, GenerationId
from bus.log import EventLog
from bus.messages.worker import WORKER, Submit

log = EventLog(__name__)

#: How long to wait for a message before sending to a full pipe is tried again.
SEND_RETRY_S = 0.005
#: Messages taken at once: as many as both ends of a pipe hold, so that one who sends without a
#: pause does not keep the worker from its work.
MOST_AT_ONCE = 512
#: Messages kept for an agent that reads none; more are asked for when these have left.
MOST_KEPT = 2048


class Pipe(Protocol):
    """What is needed of `bus.transport.pipes.WorkerPipe`."""

    def recv(self, timeout_s: float | None) -> bytes | None: ...

    def send(self, data: bytes) -> bool: ...

    def wait_sendable(self, timeout_s: float) -> None: ...


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

        No more than `MOST_AT_ONCE`, and none while `MOST_KEPT` have not left.

        Args:
            wait_s: how long to wait for the first; None is for ever.
        """
        if len(self._outbox) >= MOST_KEPT:
            self._pipe.wait_sendable(SEND_RETRY_S)
            return
        for _ in range(MOST_AT_ONCE):
            data = self._pipe.recv(wait_s)
            if data is None:
                return
            wait_s = 0.0
            try:
                message = WORKER.decode(data)
            except DecodeError as error:
                log.error("message_unreadable", error=error)
                self._reject_unreadable(data, error)
            else:
                yield message

    def _reject_unreadable(self, data: bytes, error: DecodeError) -> None:
        begins = WORKER.beginning(data)
        if begins is None or begins[0] is not Submit:
            return
        generation = begins[1]
        if type(generation) is int and 0 <= generation <= U64_MAX:
            fault = Invalid(f"the request can not be read: {error.message}; correct it")
            self.post(rejected(GenerationId(generation), fault))
