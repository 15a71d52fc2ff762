"""Connections of a ROUTER: those that have made no link are counted, timed and measured, and cut.

Whoever reaches the port may connect, and until a Hello has verified nothing is known of them.
libzmq buffers what they send where we see it late: a message of many parts not before its last
part. So connections are limited from outside, by the bytes that the kernel counts on them. That
holds for a linked peer, too: its bytes have to come out as frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

from bus.address import network_of
from bus.link import LinkEvent, PeerRefused
from bus.transport.connections import ConnectionTable
from bus.transport.cutting import cut, host_of, peer_of
from bus.transport.monitor import ConnectionEvent, Happening
from bus.transport.unread import MAX_UNREAD_BYTES, UnreadBytes

#: Connections without a verified Hello; above it the oldest of the network with most is cut.
MAX_STRANGERS = 64
#: A handshake takes some 3 KiB with ZMTP's own; a stranger that sent more wants something else.
MAX_STRANGER_BYTES = 64 * 1024
#: How often strangers are measured: at 1 Gbit/s some 3 MB pass between two looks. And others.
MEASURE_EVERY_S = 0.025
MEASURE_LINKED_EVERY_S = 0.25


@dataclass(slots=True)
class _Known:
    """Who was there when the connection was accepted, and what it has done since."""

    peer: bytes
    network: str
    unread: UnreadBytes
    #: Since when it has no link, and what it had sent by then.
    since_s: float
    since_bytes: int = 0
    linked: bool = False
    spoke: bool = False


class Strangers:
    """Owned by the router's driver. Numbers are those of the connection table.

    Args:
        table: all open connections.
    """

    def __init__(self, table: ConnectionTable) -> None:
        self._table = table
        self._known: dict[int, _Known] = {}
        self._check_at: float | None = None

    def note(self, events: list[ConnectionEvent], now: float) -> None:
        """Take in monitor events that the table has applied already."""
        open_fds = {number: fd for number, fd, _ in self._table.connections()}
        for number in self._known.keys() - open_fds.keys():
            del self._known[number]
        accepted = {event.value for event in events if event.happening is Happening.ACCEPTED}
        for number, fd in open_fds.items():
            if fd in accepted and number not in self._known and (peer := peer_of(fd)):
                unread = UnreadBytes(fd, peer, now)
                self._known[number] = _Known(peer, network_of(host_of(peer)), unread, now)
        if accepted:
            self._check_at = now

    def read(self, address: bytes, length: int) -> None:
        """A frame of so many bytes came from an address that was placed."""
        known = self._known.get(self._table.number_of(address) or 0)
        if known is not None:
            known.spoke = True
            known.unread.read(length)

    def cut(self, address: bytes) -> bool:
        """End the connection behind an address at once; False when it has gone."""
        number, fd = self._table.number_of(address), self._table.fd_of(address)
        if number is None or fd is None:
            return False
        return self._cut(number, fd)

    def next_timeout(self) -> float | None:
        """When `check` is due."""
        return self._check_at

    def check(
        self, now: float, admitted: Set[bytes], linked: Set[bytes], limit_s: float
    ) -> list[LinkEvent]:
        """Cut who has no link for too long, sends too much, or is one too many.

        Args:
            now: seconds.
            admitted: addresses whose Hello verified.
            linked: those of them that have a link.
            limit_s: how long a connection may have none.

        Returns:
            What a person should read.
        """
        found: list[LinkEvent] = []
        strangers: list[tuple[int, int]] = []
        for number, fd, addresses in list(self._table.connections()):
            known = self._known.get(number)
            if known is None:
                continue
            received = known.unread.received()
            _note_link(known, received, now, linked=not linked.isdisjoint(addresses))
            stranger = admitted.isdisjoint(addresses)
            offence = _offence(known, received, now, limit_s, stranger=stranger)
            if offence and self._cut(number, fd):
                text = f"a peer connected and {offence}; it was cut off"
                found.append(PeerRefused("handshake_timeout", text))
            elif stranger:
                strangers.append((number, fd))
        self._cut_excess(strangers)
        every_s = MEASURE_EVERY_S if strangers else MEASURE_LINKED_EVERY_S
        self._check_at = now + every_s if self._known else None
        return found

    def _cut_excess(self, strangers: list[tuple[int, int]]) -> None:
        """Cut the oldest of the network with most, until there are no more than may be."""
        counts = Counter(self._known[number].network for number, _ in strangers)
        for _ in range(len(strangers) - MAX_STRANGERS):
            most = max(counts.values())
            oldest = next(
                each for each in strangers if counts[self._known[each[0]].network] == most
            )
            counts[self._known[oldest[0]].network] -= 1
            strangers.remove(oldest)
            self._cut(*oldest)

    def _cut(self, number: int, fd: int) -> bool:
        known = self._known.pop(number, None)
        return known is not None and cut(fd, known.peer)


def _note_link(known: _Known, received: int, now: float, *, linked: bool) -> None:
    if known.linked and not linked:
        known.since_s, known.since_bytes = now, received
    known.linked = linked


def _offence(known: _Known, received: int, now: float, limit_s: float, *, stranger: bool) -> str:
    if not known.linked and now - known.since_s >= limit_s:
        return f"{'made no link' if known.spoke else 'said nothing'} for {limit_s:g} s"
    if stranger and received - known.since_bytes > MAX_STRANGER_BYTES:
        return f"sent more than {MAX_STRANGER_BYTES // 1024} KiB without joining"
    if known.unread.too_many(received, now):
        return f"sent more than {MAX_UNREAD_BYTES // 1024**2} MiB that make no frame"
    return ""
