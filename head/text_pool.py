"""Runs the core's text jobs on text processes: one job in flight per process, the rest in line.

The death of a process is the error of the job that it had; the job is not tried again, since what
killed one process would kill the next.
"""

from __future__ import annotations

import logging
import signal
from collections import deque
from pathlib import Path
from typing import Any

from bus.errors import DecodeError
from bus.messages.text import TEXT, TextFailed, TextReady
from bus.transport.child import ChildSpec
from bus.transport.pool import ChildExited, ChildMessage, ProcessPool

log = logging.getLogger(__name__)

MODULE = "head.text"


class TextPool:
    """Owned by the head's server; `replies` are for the core.

    Args:
        pool: keeps the processes running.
        processes: how many.
        arguments: of each process (its limits).
        log_path: where they write.
    """

    def __init__(
        self, pool: ProcessPool, processes: int, arguments: tuple[str, ...], log_path: Path
    ) -> None:
        self._pool = pool
        self._waiting: deque[Any] = deque()
        self._free: list[str] = []
        self._in_flight: dict[str, Any] = {}
        for number in range(1, processes + 1):
            pool.start_slot(
                ChildSpec(name=f"text-{number}", module=MODULE, args=arguments, log_path=log_path)
            )

    @property
    def ready(self) -> bool:
        """Whether any process is up."""
        return bool(self._free or self._in_flight)

    def submit(self, job: object) -> None:
        """Put a message of bus/messages/text.py in line."""
        self._waiting.append(job)
        self._hand_out()

    def replies(self) -> list[object]:
        """What came back since the last call, deaths as `TextFailed`."""
        found: list[object] = []
        for event in self._pool.events():
            if isinstance(event, ChildMessage):
                self._on_message(event, found)
            elif isinstance(event, ChildExited):
                self._on_exit(event, found)
        self._hand_out()
        return found

    def _on_message(self, event: ChildMessage, found: list[object]) -> None:
        try:
            message = TEXT.decode(event.data)
        except DecodeError as error:
            log.error("text_process_spoke_nonsense slot=%s error=%s", event.slot, error)
            self._pool.kill(event.slot)
            return
        if isinstance(message, TextReady):
            self._pool.mark_ready(event.slot)
        else:
            self._in_flight.pop(event.slot, None)
            found.append(message)
        self._free.append(event.slot)

    def _on_exit(self, event: ChildExited, found: list[object]) -> None:
        if event.slot in self._free:
            self._free.remove(event.slot)
        job = self._in_flight.pop(event.slot, None)
        log.warning(
            "text_process_ended slot=%s status=%s had_job=%s",
            event.slot,
            event.returncode,
            job is not None,
        )
        if job is not None:
            found.append(_death(job.job, event.returncode))

    def _hand_out(self) -> None:
        while self._waiting and self._free:
            slot = self._free.pop()
            job = self._waiting.popleft()
            self._in_flight[slot] = job
            if not self._pool.send(slot, TEXT.encode(job)):
                # It ended a moment ago; its exit is on the way and will bring the next process.
                del self._in_flight[slot]
                self._waiting.appendleft(job)


def _death(job: int, returncode: int) -> TextFailed:
    over_cpu = -returncode in (signal.SIGXCPU, signal.SIGKILL)
    what = "took more CPU time than one text may" if over_cpu else f"ended with {returncode}"
    return TextFailed(
        job=job,
        code="invalid" if over_cpu else "internal",
        message=f"the text process {what}; send a shorter or simpler text",
        param="prompt" if over_cpu else "",
    )
