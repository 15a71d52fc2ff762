"""Worker processes of a model's stages, with the test as the agents and the head between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.models.folder import ModelFolder
from bus.messages.worker import WORKER, Output, Ready, Stop
from bus.messages.worker_stages import StageClose, StageOpen, StageOpened, StageUnit
from tests.harness.live_worker import LiveWorker

#: What takes longer is broken (a busy machine is not).
LIMIT_S = 120.0
_WAIT_MS = 20


class StageProcesses:
    """One process of each stage. Owns them.

    Attributes:
        workers: in order; the last one drives.
        ready: what each said when it was loaded.
        heard: all else that was no unit of work, with the worker's place.
        units: units of work that were passed on.
    """

    def __init__(self, folders: Sequence[ModelFolder], run_dir: Path, *arguments: str) -> None:
        self.workers = []
        for place, folder in enumerate(folders):
            (own := run_dir / str(place)).mkdir(mode=0o700)
            self.workers.append(LiveWorker(folder.path, own, *arguments))
        self.heard: list[tuple[int, Any]] = []
        self.units: list[StageUnit] = []
        self.ready: list[Ready] = []
        for place in range(len(folders)):
            self.ready.append(self.wait_for(place, Ready))

    def send(self, place: int, message: object) -> None:
        data, until = WORKER.encode(message), time.monotonic() + LIMIT_S
        while not self.workers[place].offer(data):
            assert time.monotonic() < until, "a worker takes nothing"
            self.pass_on()

    def open(self, chain: int, **changes: Any) -> StageOpened:
        """Open a chain, the driver last; what the driver said of it."""
        order = StageOpen(chain=chain, groups=len(self.workers), lanes=4, **changes)
        found = []
        for place in range(len(self.workers) - 1):
            self.send(place, order)
            found.append(self.wait_for(place, StageOpened))
        last = replace(
            order,
            window=min(one.window for one in found),
            host_tokens=min(one.host_tokens for one in found),
            numerics=tuple(one.numerics for one in found),
        )
        self.send(len(self.workers) - 1, last)
        opened: StageOpened = self.wait_for(len(self.workers) - 1, StageOpened)
        return opened

    def close_chain(self, chain: int) -> None:
        for place in range(len(self.workers)):
            self.send(place, StageClose(chain=chain))

    def wait_for(self, place: int, kind: type) -> Any:
        """The next message of a kind that a worker says; it is taken out of `heard`."""
        until = time.monotonic() + LIMIT_S
        while True:
            for index, (whose, message) in enumerate(self.heard):
                if whose == place and isinstance(message, kind):
                    del self.heard[index]
                    return message
            assert time.monotonic() < until, f"no {kind.__name__}: {self.workers[place].log_tail()}"
            self.pass_on()

    def pass_on(self) -> None:
        """Take what the workers say, and pass on units of work."""
        for place, worker in enumerate(self.workers):
            if worker.has_ended:
                continue
            for message in worker.receive(_WAIT_MS // len(self.workers)):
                if isinstance(message, StageUnit):
                    self.units.append(message)
                    self.send((place + 1) % len(self.workers), message)
                else:
                    self.heard.append((place, message))

    def outputs(self) -> list[Output]:
        """What the driver gave so far."""
        driver = len(self.workers) - 1
        return [m for place, m in self.heard if place == driver and isinstance(m, Output)]

    def stop(self) -> list[int]:
        """End all; their exit codes."""
        for place in range(len(self.workers)):
            self.send(place, Stop())
        return [worker.exit_code() for worker in self.workers]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
