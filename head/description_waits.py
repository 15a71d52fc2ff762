"""What waits until a model's tokenizer is described: bounded, of a client and of all.

A request that is refused here comes back in a moment; one that waits costs the head what it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bus.errors import QueueFull, RateLimited
from head.effects import NOBODY, ClientKey
from head.pending_texts import MAX_CLIENT_BYTES, MAX_PENDING_BYTES, Continue

#: Requests that wait: of a client, which may have as many answers open, and of all.
MAX_OF_CLIENT = 1024
MAX_WAITING = 16 * 1024
#: What a token id takes in a request that has it as a number.
ID_BYTES = 40

#: What tokenizers are named by.
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Waiter:
    then: Continue
    client: ClientKey
    size_bytes: int


class DescriptionWaits(Generic[T]):
    """Owned by the text desk, and by what reads former tokenizers again."""

    def __init__(self) -> None:
        self._waiting: dict[T, list[_Waiter]] = {}
        self._counts: Counter[ClientKey] = Counter()
        self._bytes: Counter[ClientKey] = Counter()

    def __contains__(self, name: object) -> bool:
        return name in self._waiting

    @property
    def names(self) -> Collection[T]:
        """Tokenizers that something waits for."""
        return self._waiting.keys()

    def add(self, name: T, then: Continue, client: ClientKey, size_bytes: int) -> None:
        """Let something wait.

        Args:
            client: whose it is; `NOBODY` is the head itself.
            size_bytes: of what it holds.

        Raises:
            RateLimited: as much of the client waits as may.
            QueueFull: too much waits.
        """
        self._check_room(client, size_bytes)
        self._waiting.setdefault(name, []).append(_Waiter(then, client, size_bytes))
        self._counts[client] += 1
        self._bytes[client] += size_bytes

    def take(self, name: T) -> list[Continue]:
        """What waited for a tokenizer, which waits no longer."""
        taken = self._waiting.pop(name, [])
        for waiter in taken:
            self._counts[waiter.client] -= 1
            self._bytes[waiter.client] -= waiter.size_bytes
            if not self._counts[waiter.client]:
                del self._counts[waiter.client], self._bytes[waiter.client]
        return [waiter.then for waiter in taken]

    def _check_room(self, client: ClientKey, size_bytes: int) -> None:
        if client != NOBODY and self._counts[client] >= MAX_OF_CLIENT:
            raise RateLimited(
                f"{self._counts[client]} requests of this connection wait for tokenizers, which is "
                "all that it may have; wait for some to end",
                retry_after_ms=1000,
            )
        theirs = self._bytes[client]
        if (
            self._counts.total() >= MAX_WAITING
            or self._bytes.total() + size_bytes > MAX_PENDING_BYTES
            or (theirs and theirs + size_bytes > MAX_CLIENT_BYTES)
        ):
            raise QueueFull(
                "too much waits for tokenizers already; try again in a second",
                retry_after_ms=1000,
            )
