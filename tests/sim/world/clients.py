"""All callers of a world, and whose reply is whose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tests.sim.world.world import World


class Client(Protocol):
    """Who has connections to the head: a caller, or a conversation."""

    @property
    def closed(self) -> bool:
        """Whether it wants nothing more."""

    def replied(self, body: dict[str, Any]) -> None:
        """A reply came on one of its connections."""

    def head_died(self) -> None:
        """All its connections are gone."""

    @property
    def is_asked(self) -> bool:
        """Whether the head may have a call of it that has not ended."""

    @property
    def name(self) -> str:
        """Of its plan."""


class Clients:
    """Gives out connections and request ids."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: list[Client] = []
        self._by_client: dict[bytes, Client] = {}
        self._numbers = 0

    def add(self, client: Client) -> None:
        self.all.append(client)

    def request(self) -> bytes:
        self._numbers += 1
        return f"r{self._numbers}".encode()

    def connect(self, client: Client) -> bytes:
        """A connection of its own."""
        self._numbers += 1
        name = f"c{self._numbers}".encode()
        self._by_client[name] = client
        return name

    def forget(self, name: bytes) -> None:
        self._by_client.pop(name, None)

    def replied(self, name: bytes, body: dict[str, Any]) -> None:
        client = self._by_client.get(name)
        if client is not None:
            client.replied(body)

    def head_died(self) -> None:
        """Every connection is gone."""
        self._by_client.clear()
        for client in list(self.all):
            client.head_died()

    @property
    def asked(self) -> int:
        """How many calls the head may still have, of callers that are gone too."""
        return sum(client.is_asked for client in self.all)

    @property
    def open(self) -> list[Client]:
        return [client for client in self.all if not client.closed]
