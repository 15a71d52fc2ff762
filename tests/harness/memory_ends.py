"""The ends of connections in memory, driven as bus/transport drives endpoints over sockets.

A `Dialer` does what dealer.py does, a `Listener` what router.py does. Either is on the side of the
head or of a node. Their events carry the link's id, which an oracle knows a link by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from bus.acceptor import Acceptor
from bus.backoff import Backoff
from bus.endpoint import Endpoint
from bus.link import LinkDown, LinkEvent, LinkUp
from tests.harness.memory_network import Connection, Network

if TYPE_CHECKING:
    from tests.harness.memory_fleet import MemoryFleet

#: Bounds of the waits between tries to connect, which libzmq makes.
RECONNECT_S = (0.1, 0.3)

#: What `take` gives: which link (an address), its id, and what happened.
EndEvent = tuple[bytes, int, LinkEvent]


class Host(Protocol):
    """The process that an end belongs to."""

    fleet: MemoryFleet
    name: str

    @property
    def alive(self) -> bool:
        """Whether the process is there."""

    def now(self) -> float:
        """Its clock."""

    def post(self, action: Callable[[], None]) -> None:
        """Do something in its loop: at once, or when it is no longer paused."""


class Dialer:
    """Connects to one peer, says Hello, and again after each end."""

    def __init__(
        self,
        host: Host,
        peer: Callable[[], Listener | None],
        make_endpoint: Callable[[], Endpoint],
    ) -> None:
        self.host = host
        self._peer = peer
        self._make_endpoint = make_endpoint
        self.endpoint = make_endpoint()
        self.connection: Connection | None = None
        self._events: list[EndEvent] = []
        self._link_id = 0
        self._busy = False
        self._backoff = Backoff(host.fleet.rng, self.endpoint.limits.handshake_s)
        self._hello_at: float | None = None
        self._not_before = 0.0

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def address(self) -> bytes:
        return self.connection.address if self.connection else b""

    @property
    def _network(self) -> Network:
        return self.host.fleet.network

    def open(self) -> None:
        """Try to connect, again and again."""
        if not self.host.alive or self.connection is not None:
            return
        listener = self._peer()
        if listener is None or not self._network.connect(self, listener):
            self.host.fleet.after(self.host.fleet.rng.uniform(*RECONNECT_S), self.open)

    # --- the network's side -------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        self.connection = connection
        self.host.post(self._connected)

    def _connected(self) -> None:
        self._hello_at = max(self.host.now(), self._not_before)
        self.handle_timeout(self.host.now())

    def receive(self, connection: Connection, frame: bytes) -> None:
        def take() -> None:
            self.endpoint.receive(frame, self.host.now())
            self._collect()

        if connection is self.connection:
            self.host.post(take)

    def closed(self, connection: Connection, reason: str) -> None:
        if connection is not self.connection:
            return
        self.connection = None
        self.host.fleet.after(self.host.fleet.rng.uniform(*RECONNECT_S), self.open)
        self.host.post(lambda: self._closed(reason))

    def _closed(self, reason: str) -> None:
        self._hello_at = None
        was_up = self.endpoint.state == "up"
        self.endpoint.disconnected(reason, self.host.now())
        self._collect()
        if not was_up:
            self._wait_after_end()

    # --- the owner's side ---------------------------------------------------------------------

    def take(self) -> list[EndEvent]:
        self._collect()
        events, self._events = self._events, []
        return events

    def send(self, address: bytes, message: object) -> bool:
        sent = self.endpoint.send(message)
        if sent and self.endpoint.link_id is not None:
            role, watch = self.endpoint.identity.role, self.host.fleet.watch
            watch.sent(role, self.host.name, self.endpoint.link_id, message)
        return sent

    def close_link(self, address: bytes, reason: str) -> None:
        self.endpoint.close(reason, self.host.now())

    def set_busy(self, busy: bool) -> None:
        self._busy = busy
        self.endpoint.set_busy(busy)

    def flush(self) -> None:
        connection = self.connection
        if connection is None:
            return
        while (frame := self.endpoint.next_frame(self.host.now())) is not None:
            connection.send(self, frame)

    def next_timeout(self) -> float | None:
        times = [self._hello_at, self.endpoint.next_timeout()]
        return min((at for at in times if at is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        due = self.endpoint.next_timeout()
        if due is not None and due <= now:
            self.endpoint.handle_timeout(now)
        self._collect()
        if self._hello_at is not None and self._hello_at <= now:
            self._hello_at = None
            self.endpoint = self._make_endpoint()
            self.endpoint.set_busy(self._busy)
            self.endpoint.connect(now)

    def queued_bytes(self) -> int:
        return self.endpoint.queued_bytes

    def _collect(self) -> None:
        for event in self.endpoint.events():
            if isinstance(event, LinkUp):
                self._link_id = self.endpoint.link_id or 0
                self._backoff.up(self.host.now())
            self._events.append((b"dialed", self._link_id, event))
            if isinstance(event, LinkDown):
                self._wait_after_end(event.code)
                if self.connection is not None:
                    self._hello_at = self._not_before

    def _wait_after_end(self, code: str = "") -> None:
        self._not_before = self._backoff.ended(self.host.now(), code)


class Listener:
    """Takes connections; their links are an acceptor's."""

    def __init__(self, host: Host, acceptor: Acceptor) -> None:
        self.host = host
        self.acceptor = acceptor
        self._connections: dict[bytes, Connection] = {}
        self._link_ids: dict[bytes, int] = {}
        self._events: list[EndEvent] = []

    @property
    def name(self) -> str:
        return self.host.name

    def connected(self, connection: Connection) -> None:
        self._connections[connection.address] = connection

    def receive(self, connection: Connection, frame: bytes) -> None:
        self.receive_at(connection.address, frame)

    def receive_at(self, address: bytes, frame: bytes) -> None:
        """A frame under a return address."""

        def take() -> None:
            host = self.host
            self.acceptor.receive(address, frame, host.now(), peer_key=host.fleet.peer_key)
            self._collect()

        self.host.post(take)

    def closed(self, connection: Connection, reason: str) -> None:
        def take() -> None:
            self.acceptor.disconnected(connection.address, reason, self.host.now())
            self._collect()

        self._connections.pop(connection.address, None)
        self.host.post(take)

    def take(self) -> list[EndEvent]:
        self._collect()
        events, self._events = self._events, []
        return events

    def send(self, address: bytes, message: object) -> bool:
        endpoint = self.acceptor.endpoint(address)
        if endpoint is None or not endpoint.send(message):
            return False
        if endpoint.link_id is not None:
            role, watch = self.acceptor.identity.role, self.host.fleet.watch
            watch.sent(role, self.host.name, endpoint.link_id, message)
        return True

    def close_link(self, address: bytes, reason: str) -> None:
        endpoint = self.acceptor.endpoint(address)
        if endpoint is not None:
            endpoint.close(reason, self.host.now())

    def set_busy(self, busy: bool) -> None:
        for _, link in self.acceptor.links():
            link.set_busy(busy)

    def flush(self) -> None:
        while frames := self.acceptor.frames_to_send(self.host.now()):
            for address, frame in frames:
                connection = self._connections.get(address)
                if connection is not None:
                    connection.send(self, frame)

    def next_timeout(self) -> float | None:
        return self.acceptor.next_timeout()

    def handle_timeout(self, now: float) -> None:
        self.acceptor.handle_timeout(now)
        self._collect()

    def queued_bytes(self) -> int:
        return sum(link.queued_bytes for _, link in self.acceptor.links())

    def close_all(self) -> None:
        """The process is gone."""
        for connection in list(self._connections.values()):
            connection.close(self)
        self._connections.clear()

    def _collect(self) -> None:
        for address, event in self.acceptor.events():
            if isinstance(event, LinkUp):
                endpoint = self.acceptor.endpoint(address)
                self._link_ids[address] = (endpoint.link_id or 0) if endpoint else 0
            link_id = self._link_ids.get(address, 0)
            if isinstance(event, LinkDown):
                self._link_ids.pop(address, None)
            self._events.append((address, link_id, event))
