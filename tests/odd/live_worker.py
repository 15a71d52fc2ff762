"""A worker process with the toy model, spoken to over its pipes as an agent does."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bus.ids import WorkerIncarnation
from bus.messages.worker import WORKER
from bus.transport.child import Child, ChildSpec

#: A worker that does not end within so long is killed.
END_LIMIT_MS = 20_000


class LiveWorker:
    """One worker process. Owns it and its pipes.

    Args:
        model_folder: what it serves.
        run_dir: folder of its pipes and its log.
        arguments: further ones of the program.
    """

    def __init__(self, model_folder: Path, run_dir: Path, *arguments: str) -> None:
        self._death_read, self._death_write = os.pipe()
        self._log = run_dir / "worker.log"
        words = ("--model-folder", str(model_folder), "--threads", "1", *arguments)
        spec = ChildSpec(name="odd", module="agent.worker", args=words, log_path=self._log)
        self._child = Child(spec, run_dir, WorkerIncarnation(7), self._death_read)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return bool(select.select([self._child.pid_fd], [], [], 0)[0])

    def log_tail(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-3000:]

    def send(self, data: bytes) -> bool:
        """False when it takes no more now."""
        return self._child.pipe.send(data)

    def receive(self, wait_ms: int) -> list[Any]:
        """What it said, after waiting for the first word of it.

        Raises:
            DecodeError: it sent what an agent could not read.
        """
        found: list[Any] = []
        if self._child.pipe.readable.poll(wait_ms):
            while (data := self._child.pipe.recv()) is not None:
                found.append(WORKER.decode(data))
        return found

    def close(self) -> None:
        """End it."""
        self._child.signal(signal.SIGTERM)
        if not select.select([self._child.pid_fd], [], [], END_LIMIT_MS / 1000)[0]:
            self._child.signal(signal.SIGKILL)
        self._child.reap()
        self._child.close()
        os.close(self._death_read)
        os.close(self._death_write)


@contextmanager
def live_worker(model_folder: Path, folder: Path, *arguments: str) -> Iterator[LiveWorker]:
    """A worker for as long as the block lasts."""
    run_dir = folder / "run"
    run_dir.mkdir(mode=0o700)
    worker = LiveWorker(model_folder, run_dir, *arguments)
    try:
        yield worker
    finally:
        worker.close()
