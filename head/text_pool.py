"""Runs the core's text jobs on text processes: one job in flight per process, the rest in line.

A job goes to the free process that worked for its client last, which has encoded before what the
client sends again (head/free_slots.py).

Constraints have a process of their own, which does nothing else: a check may take seconds and may
end it, and texts do not wait for that. Of clients that check constraints each has its turn there.

The death of a process is the error of the job that it had; the pool does not try the job again,
since what killed one process may kill the next. The error says whether asking again makes sense.
"""

from __future__ import annotations

import logging
import resource
import signal
from pathlib import Path
from typing import Any

from bus.errors import DecodeError
from bus.messages.text import (
    TEXT,
    CheckConstraint,
    Describe,
    Description,
    RenderChat,
    TextFailed,
    TextReady,
)
from bus.transport import clock
from bus.transport.child import ChildSpec
from bus.transport.pool import ChildExited, ChildMessage, ProcessPool
from head.effects import ClientKey
from head.fair_line import FairLine
from head.free_slots import FreeSlots

log = logging.getLogger(__name__)

MODULE = "head.text"
#: The slot that checks constraints.
CONSTRAINTS = "text-c"
#: A process that was ended is up again by then.
RETRY_AFTER_MS = 1000


class TextPool:
    """Owned by the head's server; `replies` are for the core.

    Args:
        pool: keeps the processes running.
        processes: how many, beside the one for constraints.
        cpu_s: CPU seconds that a job may take.
        memory_bytes: memory that a process may take.
        log_path: where they write.
    """

    def __init__(
        self, pool: ProcessPool, processes: int, cpu_s: int, memory_bytes: int, log_path: Path
    ) -> None:
        self._pool = pool
        self._cpu_s = cpu_s
        self._waiting: FairLine[Any] = FairLine()
        self._waiting_checks: FairLine[Any] = FairLine()
        self._free = FreeSlots()
        self._checks_free = False
        self._in_flight: dict[str, Any] = {}
        #: When the slot got its job.
        self._since: dict[str, float] = {}
        arguments = ("--cpu-s", str(cpu_s), "--memory-bytes", str(memory_bytes))
        names = [f"text-{number}" for number in range(1, processes + 1)]
        for name in (*names, CONSTRAINTS):
            pool.start_slot(ChildSpec(name=name, module=MODULE, args=arguments, log_path=log_path))

    @property
    def ready(self) -> bool:
        """Whether any process for texts is up."""
        return bool(self._free) or any(slot != CONSTRAINTS for slot in self._in_flight)

    def submit(self, client: ClientKey, job: object) -> None:
        """Put a message of bus/messages/text.py in line; clients take turns."""
        line = self._waiting_checks if isinstance(job, CheckConstraint) else self._waiting
        line.push(client, job)
        self._hand_out()

    def drop(self, number: int) -> None:
        """Forget a job that still waits; one that a process has is let finish."""
        for line in (self._waiting, self._waiting_checks):
            line.remove_if(lambda job: job.job == number)

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
            if isinstance(message, Description):
                message = message.unpacked()
        except DecodeError as error:
            log.error("text_process_spoke_nonsense slot=%s error=%s", event.slot, error)
            self._pool.kill(event.slot)
            return
        if isinstance(message, TextReady):
            self._pool.mark_ready(event.slot)
        else:
            self._in_flight.pop(event.slot, None)
            found.append(message)
        if event.slot == CONSTRAINTS:
            self._checks_free = True
        else:
            self._free.add(event.slot)

    def _on_exit(self, event: ChildExited, found: list[object]) -> None:
        if event.slot == CONSTRAINTS:
            self._checks_free = False
        self._free.remove(event.slot)
        job = self._in_flight.pop(event.slot, None)
        log.warning(
            "text_process_ended slot=%s status=%s had_job=%s",
            event.slot,
            event.returncode,
            job is not None,
        )
        if job is not None:
            ran_s = clock.now() - self._since[event.slot]
            found.append(death(job, event.returncode, self._may_be_cpu_limit(ran_s)))

    def _may_be_cpu_limit(self, ran_s: float) -> bool:
        """Whether SIGKILL may be for CPU time: there is a hard limit, and time enough went by."""
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        return hard != resource.RLIM_INFINITY and ran_s >= self._cpu_s

    def _hand_out(self) -> None:
        while self._free and (first := self._waiting.pop()) is not None:
            self._give(self._free.take(first[0]), self._waiting, *first)
        if self._checks_free and (first := self._waiting_checks.pop()) is not None:
            self._checks_free = False
            self._give(CONSTRAINTS, self._waiting_checks, *first)

    def _give(self, slot: str, line: FairLine[Any], client: ClientKey, job: Any) -> None:
        self._in_flight[slot] = job
        self._since[slot] = clock.now()
        if not self._pool.send(slot, TEXT.encode(job)):
            # It ended a moment ago; its exit is on the way and will bring the next process.
            del self._in_flight[slot]
            line.put_back(client, job)


def death(job: Any, returncode: int, may_be_cpu_limit: bool) -> TextFailed:
    """What a process's end means for its job; limits end it by signals (bus/text/process.py).

    Args:
        job: a message of bus/messages/text.py.
        returncode: exit status, or -N for signal N.
        may_be_cpu_limit: whether SIGKILL can be the kernel's, for CPU time.
    """
    number = -returncode
    if number == signal.SIGXCPU or (number == signal.SIGKILL and may_be_cpu_limit):
        return _over_limit(job, "CPU time")
    if number == signal.SIGALRM:
        return _over_limit(job, "time")
    if number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS):
        return _over_limit(job, "memory")
    how = f"signal {number}" if number > 0 else f"status {returncode}"
    return TextFailed(
        job=job.job,
        code="tokenizer_unavailable",
        message=f"the text process ended ({how}) while it worked on this; it is started again: "
        "ask again",
        retry_after_ms=RETRY_AFTER_MS,
    )


def _over_limit(job: Any, what: str) -> TextFailed:
    if isinstance(job, Describe):
        return TextFailed(
            job=job.job,
            code="tokenizer_unavailable",
            message=f"the model's tokenizer took more {what} than a text process may; raise "
            "text.cpu_s or text.memory_bytes of head.toml, or import the model again",
            retry_after_ms=RETRY_AFTER_MS,
        )
    if isinstance(job, CheckConstraint):
        return TextFailed(
            job=job.job,
            code="constraint_invalid",
            message=f"the constraint can not be used: {job.constraint.kind}: compiling it takes "
            f"{'too long' if what != 'memory' else 'too much memory'} (more {what} than a "
            "constraint may have); send a smaller or simpler one",
            param="constraint",
        )
    if isinstance(job, RenderChat):
        return TextFailed(
            job=job.job,
            code="too_large",
            message=f"the text process took more {what} than one chat may; send fewer or shorter "
            "messages, or mend the model's chat template if short ones end like this, too",
            param="messages",
        )
    return TextFailed(
        job=job.job,
        code="too_large",
        message=f"the text process took more {what} than one text may; send a shorter or simpler "
        "text",
        param="prompt",
    )
