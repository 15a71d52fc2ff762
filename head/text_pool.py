"""Runs the core's text jobs on text processes: one job in flight per process, the rest in line.

The death of a process is the error of the job that it had; the job is not tried again, since what
killed one process would kill the next.
"""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

from bus.errors import DecodeError
from bus.messages.text import TEXT, TextFailed, TextReady
from bus.transport.child import ChildSpec
from bus.transport.pool import ChildExited, ChildMessage, ProcessPool
from head.effects import ClientKey
from head.fair_line import FairLine

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
        self._waiting: FairLine[Any] = FairLine()
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

    def submit(self, client: ClientKey, job: object) -> None:
        """Put a message of bus/messages/text.py in line; clients take turns."""
        self._waiting.push(client, job)
        self._hand_out()

    def drop(self, number: int) -> None:
        """Forget a job that still waits; one that a process has is let finish."""
        self._waiting.remove_if(lambda job: job.job == number)

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
        while self._free and (first := self._waiting.pop()) is not None:
            client, job = first
            slot = self._free.pop()
            self._in_flight[slot] = job
            if not self._pool.send(slot, TEXT.encode(job)):
                # It ended a moment ago; its exit is on the way and will bring the next process.
                del self._in_flight[slot]
                self._waiting.put_back(client, job)


def _death(job: int, returncode: int) -> TextFailed:
    """What a process's end means for its job; limits end it by signals (bus/text/process.py)."""
    number = -returncode
    if number in (signal.SIGXCPU, signal.SIGKILL):
        code, what = "too_large", "took more CPU time than one text may"
    elif number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS):
        code, what = "too_large", "took more memory than one text may"
    else:
        code, what = "internal", f"ended with {returncode}"
    return TextFailed(
        job=job,
        code=code,
        message=f"the text process {what}; send a shorter or simpler text",
        param="prompt" if code == "too_large" else "",
    )
