"""Jobs that are at the text processes, or will be: bounded, and counted by client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bus.errors import QueueFull, SuperfluidError
from bus.ids import ModelName
from head.effects import ClientKey

#: What may wait at the text processes, and of it what one client may have; more is refused with a
#: hint to come back.
MAX_PENDING_JOBS = 1024
MAX_PENDING_BYTES = 64 * 1024 * 1024
MAX_CLIENT_BYTES = 16 * 1024 * 1024

Continue = Callable[[object | SuperfluidError, float], None]


@dataclass(slots=True)
class PendingText:
    """A job that has no reply yet."""

    then: Continue
    client: ClientKey
    size_bytes: int
    #: Its reply is for the client's connection alone.
    until_gone: bool = False
    model: ModelName = ModelName("")


class PendingTexts:
    """Owned by the text desk."""

    def __init__(self) -> None:
        self._jobs: dict[int, PendingText] = {}
        self._bytes: dict[ClientKey, int] = {}
        self._last_job = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, number: int) -> PendingText | None:
        return self._jobs.get(number)

    def check_room(self, client: ClientKey, size_bytes: int) -> None:
        """See that a client may have one more.

        Raises:
            QueueFull: too much waits already.
        """
        theirs, total = self._bytes.get(client, 0), sum(self._bytes.values())
        if (
            len(self._jobs) >= MAX_PENDING_JOBS
            or total + size_bytes > MAX_PENDING_BYTES
            or (theirs and theirs + size_bytes > MAX_CLIENT_BYTES)
        ):
            raise QueueFull(
                f"{len(self._jobs)} texts of {total} bytes wait to be tokenized; try again in a "
                "second",
                retry_after_ms=1000,
            )

    def add(self, job: PendingText) -> int:
        """Count a job; gives its number."""
        self._last_job += 1
        self._jobs[self._last_job] = job
        self._bytes[job.client] = self._bytes.get(job.client, 0) + job.size_bytes
        return self._last_job

    def settle(self, number: int) -> PendingText | None:
        """A job is over; None when it was before."""
        job = self._jobs.pop(number, None)
        if job is not None:
            left = self._bytes.pop(job.client) - job.size_bytes
            if left or any(other.client == job.client for other in self._jobs.values()):
                self._bytes[job.client] = left
        return job

    def until_gone(self, client: ClientKey) -> list[int]:
        """What only this client's connection waits for."""
        return [n for n, job in self._jobs.items() if job.client == client and job.until_gone]
