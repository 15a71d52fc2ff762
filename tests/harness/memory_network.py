"""Connections in memory: frames in order with delays, and every harm that a network can do.

A cable may be blocked one way or both ways: what is sent then waits, as TCP has it wait, and the
ends notice nothing. Beyond what TCP does, frames may vanish, come twice (also on a later
connection, or back to their sender) or out of order: links must stand that, too.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.harness.memory_fleet import MemoryFleet

#: How long a connection takes to be noticed as gone, and a frame may be late at worst.
NOTICE_S = 0.001
LATE_S = 0.3
REPLAY_S = 3.0
#: A connection that lost a frame ends in this time at the latest.
BROKEN_S = 3.0
#: Frames that wait in a blocked cable; a socket takes no more than that either.
MAX_HELD = 4096


class End(Protocol):
    """One end of connections: a process's dialer or listener."""

    @property
    def name(self) -> str:
        """Of its process: "head", or the node's."""

    def connected(self, connection: Connection) -> None:
        """A connection stands."""

    def receive(self, connection: Connection, frame: bytes) -> None:
        """A frame came."""

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone."""


class Connection:
    """One connection; direction 0 goes from the dialer to the listener."""

    def __init__(self, network: Network, address: bytes, ends: tuple[End, End]) -> None:
        self.network = network
        self.address = address
        self.ends = ends
        self.open = True
        self.held: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self.arrived = [0.0, 0.0]
        #: Ends that do not know yet that it is gone.
        self.unaware: list[int] = []

    def send(self, sender: End, frame: bytes) -> None:
        """Put a frame on its way; one for a connection that is gone is lost."""
        if self.open:
            self.network.carry(self, 0 if sender is self.ends[0] else 1, frame)

    def close(self, by: End | None) -> None:
        """End it; the ends hear of that, but for the one that did it."""
        if not self.open:
            return
        self.open = False
        self.unaware = [place for place, end in enumerate(self.ends) if end is not by]
        self.network.closed(self)

    def way(self, direction: int) -> tuple[str, str]:
        """Names of sender and receiver."""
        return self.ends[direction].name, self.ends[1 - direction].name


class Network:
    """All cables of a fleet. What it does to frames is decided by the fleet's seed."""

    def __init__(self, fleet: MemoryFleet) -> None:
        self._fleet = fleet
        self._rng = fleet.rng
        self.delay_s = 0.001
        self.drop = 0.0
        self.duplicate = 0.0
        self.reorder = 0.0
        self.misdirect = 0.0
        #: (sender, receiver) whose cable lets nothing through.
        self.blocked: set[tuple[str, str]] = set()
        #: What becomes of a frame on its way, such as "node-1 > head".
        self.mangle: Callable[[str, bytes], list[bytes]] | None = None
        self.connections: list[Connection] = []
        self.harm: dict[str, int] = {"dropped": 0, "duplicated": 0, "reordered": 0, "misled": 0}
        self._numbers = itertools.count(1)

    # --- connections --------------------------------------------------------------------------

    def connect(self, dialer: End, listener: End) -> bool:
        """Make a connection; False when the cable between is blocked."""
        if self.is_blocked(dialer.name, listener.name):
            return False
        node = listener.name if dialer.name == "head" else dialer.name
        address = f"{node}/{next(self._numbers)}".encode()
        connection = Connection(self, address, (dialer, listener))
        self.connections.append(connection)
        listener.connected(connection)
        dialer.connected(connection)
        return True

    def is_blocked(self, one: str, other: str) -> bool:
        return (one, other) in self.blocked or (other, one) in self.blocked

    def closed(self, connection: Connection) -> None:
        self.connections.remove(connection)
        self._notify(connection)

    def _notify(self, connection: Connection) -> None:
        """Tell the ends that can be told; the others hear of it when the cable is whole."""
        for place in list(connection.unaware):
            end = connection.ends[place]
            if connection.way(1 - place) in self.blocked:
                again = lambda: self._notify(connection)  # noqa: E731
                self._fleet.after(0.5, again)
                return
            connection.unaware.remove(place)
            tell = lambda e=end: e.closed(connection, "cut")  # noqa: E731
            self._fleet.after(NOTICE_S, tell)

    def block(self, sender: str, receiver: str) -> None:
        self.blocked.add((sender, receiver))

    def unblock(self, sender: str, receiver: str) -> None:
        """What waited in the cable comes now."""
        self.blocked.discard((sender, receiver))
        for connection in list(self.connections):
            for direction in (0, 1):
                if connection.way(direction) == (sender, receiver):
                    held = connection.held[direction]
                    while held:
                        self._deliver(connection, direction, held.popleft())

    # --- frames -------------------------------------------------------------------------------

    def carry(self, connection: Connection, direction: int, frame: bytes) -> None:
        sender, receiver = way = connection.way(direction)
        parts = [frame] if self.mangle is None else self.mangle(f"{sender} > {receiver}", frame)
        for part in parts:
            if self.drop and self._rng.random() < self.drop:
                self.harm["dropped"] += 1
                # TCP would not go on after a loss; who sits in between may see to it that it does.
                # Then later frames show the gap, and after the last one a heartbeat.
                if self._rng.random() < 0.5:
                    later = self._rng.uniform(0.0, BROKEN_S)
                    self._fleet.after(later, partial(connection.close, None))
            elif way in self.blocked:
                held = connection.held[direction]
                if len(held) < MAX_HELD:
                    held.append(part)
            else:
                self._deliver(connection, direction, part)

    def _deliver(self, connection: Connection, direction: int, frame: bytes) -> None:
        rng, fleet = self._rng, self._fleet
        at = fleet.now + self.delay_s * rng.uniform(0.5, 2.0)
        if self.reorder and rng.random() < self.reorder:
            self.harm["reordered"] += 1
            at += rng.random() * LATE_S
        else:
            at = connection.arrived[direction] = max(at, connection.arrived[direction])
        fleet.after(at - fleet.now, lambda: self._arrive(connection, direction, frame))
        if self.duplicate and rng.random() < self.duplicate:
            self.harm["duplicated"] += 1
            fleet.after(
                at - fleet.now + rng.random() * REPLAY_S,
                lambda: self._replay(connection.way(direction), frame),
            )
        if self.misdirect and rng.random() < self.misdirect:
            self._mislead(connection, direction, frame)

    def _arrive(self, connection: Connection, direction: int, frame: bytes) -> None:
        if connection.open:
            connection.ends[1 - direction].receive(connection, frame)

    def _replay(self, way: tuple[str, str], frame: bytes) -> None:
        """An old frame on whatever connection goes that way now."""
        for connection in self.connections:
            for direction in (0, 1):
                if connection.way(direction) == way and way not in self.blocked:
                    self._arrive(connection, direction, frame)
                    return

    def _mislead(self, connection: Connection, direction: int, frame: bytes) -> None:
        """A frame comes back to its sender, on another cable, or under another channel."""
        self.harm["misled"] += 1
        kind = self._rng.randrange(3)
        if kind == 0:
            self._fleet.after(self.delay_s, lambda: self._arrive(connection, 1 - direction, frame))
        elif kind == 1:
            other = self._rng.choice(self.connections)
            self._fleet.after(self.delay_s, lambda: self._arrive(other, direction, frame))
        else:
            changed = bytearray(frame)
            changed[22] = (changed[22] + 1) % 5
            self._fleet.after(
                self.delay_s, lambda: self._arrive(connection, direction, bytes(changed))
            )
