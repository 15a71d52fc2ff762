"""A worker's pipe in memory, under a clock that its waits set."""

from __future__ import annotations

from collections import deque
from typing import Any

from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from agent.worker.runner import Worker
from bus.messages.worker import WORKER, Stop

#: What one turn of the loop takes on the test's clock.
TURN_S = 0.3


class MemoryPipe:
    """The agent's end in memory: gives `inbox`, then a Stop once the worker waits for ever."""

    def __init__(self, *inbox: object) -> None:
        self.now = 100.0
        self.inbox = deque(WORKER.encode(message) for message in inbox)
        #: What the worker sent, and when.
        self.sent: list[tuple[float, Any]] = []

    def clock(self) -> float:
        return self.now

    def recv(self, timeout_s: float | None) -> bytes | None:
        if self.inbox:
            return self.inbox.popleft()
        if timeout_s is None:
            return WORKER.encode(Stop())
        self.now += TURN_S
        return None

    def send(self, data: bytes) -> bool:
        self.sent.append((self.now, WORKER.decode(data)))
        return True

    def wait_sendable(self, timeout_s: float) -> None:
        raise AssertionError("this pipe takes everything")

    def serve(self, runner: ModelRunner) -> list[tuple[float, Any]]:
        Worker(self, Engine(runner), self.clock).run()
        return self.sent
