"""A real worker process, spoken to over its pipes as an agent does."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Any

from bus.ids import WorkerIncarnation
from bus.messages.worker import WORKER
from bus.transport.child import Child, ChildSpec

#: A worker that does not end within so long is broken (a busy machine is not).
END_LIMIT_S = 30.0


class LiveWorker:
    """One worker process of incarnation 7. Owns it and its pipes.

    Args:
        model_folder: what it serves.
        run_dir: folder of its pipes and its log.
        arguments: further ones of the program.

    Attributes:
        child: the process.
        log: where it writes.
        death_write: while this end is open the worker lives; -1 for whoever closes it before.
    """

    def __init__(self, model_folder: Path, run_dir: Path, *arguments: str) -> None:
        self._death_read, self.death_write = os.pipe()
        self.log = run_dir / "worker.log"
        words = ("--model-folder", str(model_folder), "--threads", "1", *arguments)
        spec = ChildSpec(name="toy", module="agent.worker", args=words, log_path=self.log)
        self.child = Child(spec, run_dir, WorkerIncarnation(7), self._death_read)
        self._ended: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._ended is not None or self._ends_within(0)

    def log_tail(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(errors="replace")[-3000:]

    def offer(self, data: bytes) -> bool:
        """Send a message's bytes; False when it takes no more now."""
        return self.child.pipe.send(data)

    def receive(self, wait_ms: int) -> list[Any]:
        """What it said, after waiting for the first word of it.

        Raises:
            DecodeError: it sent what an agent could not read.
        """
        found: list[Any] = []
        if self.child.pipe.readable.poll(wait_ms):
            while (data := self.child.pipe.recv()) is not None:
                found.append(WORKER.decode(data))
        return found

    def exit_code(self) -> int:
        """Wait for the process's end."""
        if self._ended is None:
            assert self._ends_within(END_LIMIT_S), "the worker does not end"
            self._ended = self.child.reap()
        return self._ended

    def close(self) -> None:
        """Kill it, if it still runs."""
        if self._ended is None:
            self.child.signal(signal.SIGKILL)
            self.exit_code()
        self.child.close()
        os.close(self._death_read)
        if self.death_write >= 0:
            os.close(self.death_write)

    def _ends_within(self, wait_s: float) -> bool:
        return bool(select.select([self.child.pid_fd], [], [], wait_s)[0])
