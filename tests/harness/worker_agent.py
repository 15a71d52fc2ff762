"""The agent's side of a real worker process, spoken to over its pipes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bus.ids import unpack_ids
from bus.messages.parts import Finish
from bus.messages.worker import WORKER, Output
from tests.harness.live_worker import LiveWorker

#: A worker that says nothing for so long is broken (a busy machine is not).
PATIENCE_S = 30.0

M = TypeVar("M")


class Agent(LiveWorker):
    """The agent's side of one worker; keeps what it said."""

    def __init__(self, folder: Path, run_dir: Path, *args: str) -> None:
        super().__init__(folder, run_dir, *args)
        self.messages: list[Any] = []

    def send(self, message: object) -> None:
        data = WORKER.encode(message)
        self.wait(lambda: self.offer(data))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Read messages until a condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain; got {self.messages}; log: {self.log.read_text()}")
            self.messages += self.receive(20)

    def take(self, kind: type[M], where: Callable[[M], bool] = lambda message: True) -> M:
        """The next message of a kind."""
        found: list[M] = []

        def seek() -> bool:
            found[:] = [m for m in self.messages if isinstance(m, kind) and where(m)]
            return bool(found)

        self.wait(seek)
        self.messages.remove(found[0])
        return found[0]

    def tokens(self, generation: int) -> list[int]:
        """What came of a generation so far, checked to be without gap or repeat."""
        ids: list[int] = []
        for message in self.messages:
            for run in message.runs if isinstance(message, Output) else ():
                if run.generation == generation:
                    assert run.first_index == len(ids)
                    ids += unpack_ids(run.ids)
        return ids

    def has_tokens(self, generation: int) -> bool:
        return bool(self.tokens(generation))

    def finish(self, generation: int) -> Finish:
        ends: list[Finish] = []

        def seek() -> bool:
            outputs = [m for m in self.messages if isinstance(m, Output)]
            runs = [run for output in outputs for run in output.runs]
            ends[:] = [r.finish for r in runs if r.generation == generation and r.finish]
            return bool(ends)

        self.wait(seek)
        (end,) = ends
        return end
