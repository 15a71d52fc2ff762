"""Which of a ROUTER's peers came over which connection, so that a closed connection names them.

libzmq's monitor speaks of descriptors, its frames of routing ids; a frame carries the descriptor
it came over (SRCFD). Descriptors are used again at once, hence each accepted connection gets a
number of its own.

    ACCEPTED fd    -> the descriptor means a new connection from now on
    first frame    -> its routing id belongs to the connection its descriptor means now
    DISCONNECTED   -> all routing ids of that connection are gone

A peer's first frame comes after its ACCEPTED event, so the monitor has to be drained between
reading such a frame and placing its peer; an event of the descriptor's former use would else cut
the new peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bus.transport.monitor import ConnectionEvent, Happening


@dataclass(slots=True)
class _Connection:
    number: int
    peers: set[bytes] = field(default_factory=set)


class ConnectionTable:
    """Driven by the owner of one ROUTER; does no I/O.

    Invariant: a placed peer is in exactly one connection, and that one is open.
    """

    def __init__(self) -> None:
        self._accepted = 0
        self._by_fd: dict[int, _Connection] = {}
        self._fd_of_peer: dict[bytes, int] = {}

    def __contains__(self, peer: bytes) -> bool:
        return peer in self._fd_of_peer

    def __len__(self) -> int:
        return len(self._by_fd)

    @property
    def accepted(self) -> int:
        """How many connections there were in all."""
        return self._accepted

    def apply(self, events: Iterable[ConnectionEvent]) -> list[bytes]:
        """Take in monitor events; the peers whose connection ended."""
        gone: list[bytes] = []
        for event in events:
            if event.happening in (Happening.ACCEPTED, Happening.DISCONNECTED):
                gone += self._forget(event.value)
            if event.happening is Happening.ACCEPTED:
                self._accepted += 1
                self._by_fd[event.value] = _Connection(self._accepted)
        return gone

    def place(self, peer: bytes, fd: int) -> bool:
        """Note that `peer` came over `fd`; False when that connection has ended already."""
        connection = self._by_fd.get(fd)
        if connection is None:
            return False
        connection.peers.add(peer)
        self._fd_of_peer[peer] = fd
        return True

    def fd_of(self, peer: bytes) -> int | None:
        """The descriptor of a peer's connection."""
        return self._fd_of_peer.get(peer)

    def number_of(self, peer: bytes) -> int | None:
        """The number of a peer's connection, which no other one ever gets."""
        fd = self._fd_of_peer.get(peer)
        return None if fd is None else self._by_fd[fd].number

    def connections(self) -> Iterator[tuple[int, int, set[bytes]]]:
        """Number, descriptor and peers of each open connection, the oldest first."""
        for fd, connection in self._by_fd.items():
            yield connection.number, fd, connection.peers

    def remove(self, peer: bytes) -> None:
        """Forget one peer, as when a send found it gone."""
        fd = self._fd_of_peer.pop(peer, None)
        if fd is not None:
            self._by_fd[fd].peers.discard(peer)

    def _forget(self, fd: int) -> list[bytes]:
        connection = self._by_fd.pop(fd, None)
        if connection is None:
            return []
        for peer in connection.peers:
            del self._fd_of_peer[peer]
        return sorted(connection.peers)
