"""Connections of a ROUTER that have made no link: counted, timed, measured, and cut.

Whoever reaches the port may connect, and until a Hello has verified nothing is known of them.
libzmq buffers what they send where we see it late: a message of many parts not before its last
part. So strangers are limited from outside, by the bytes that the kernel counts on their
connection.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from bus.link import LinkEvent, PeerRefused
from bus.transport.connections import ConnectionTable
from bus.transport.cutting import bytes_received, cut, peer_of
from bus.transport.monitor import ConnectionEvent, Happening

#: Connections that have not made a link, beside the handshakes under way; the oldest is cut first.
MAX_STRANGERS = 64
#: A handshake takes some 3 KiB with ZMTP's own; a stranger that sent more wants something else.
MAX_STRANGER_BYTES = 64 * 1024
#: How often strangers are measured: at 1 Gbit/s some 6 MB pass between two looks.
MEASURE_EVERY_S = 0.05


@dataclass(slots=True)
class _Known:
    """Who was there when the connection was accepted, when, and whether a frame came of it."""

    peer: bytes
    since_s: float
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
                self._known[number] = _Known(peer, now)
        if accepted and self._check_at is None:
            self._check_at = now

    def spoke(self, address: bytes) -> None:
        """A frame came from an address that was placed."""
        known = self._known.get(self._table.number_of(address) or 0)
        if known is not None:
            known.spoke = True

    def cut(self, address: bytes) -> bool:
        """End the connection behind an address at once; False when it has gone."""
        number, fd = self._table.number_of(address), self._table.fd_of(address)
        if number is None or fd is None:
            return False
        return self._cut(number, fd)

    def next_timeout(self) -> float | None:
        """When `check` is due."""
        return self._check_at

    def check(self, now: float, admitted: Set[bytes], silence_s: float) -> list[LinkEvent]:
        """Cut who is silent for too long, sends too much, or is one too many.

        Args:
            admitted: addresses whose Hello verified.
            silence_s: how long a connection may say nothing.

        Returns:
            What a person should read.
        """
        strangers = [
            (number, fd)
            for number, fd, addresses in self._table.connections()
            if number in self._known and admitted.isdisjoint(addresses)
        ]
        self._check_at = now + MEASURE_EVERY_S if strangers else None
        excess = max(0, len(strangers) - MAX_STRANGERS)
        for number, fd in strangers[:excess]:
            self._cut(number, fd)
        found: list[LinkEvent] = []
        for number, fd in strangers[excess:]:
            offence = self._offence(self._known[number], fd, now, silence_s)
            if offence and self._cut(number, fd):
                text = f"a peer connected and {offence}; it was cut off"
                found.append(PeerRefused("handshake_timeout", text))
        return found

    def _offence(self, known: _Known, fd: int, now: float, silence_s: float) -> str:
        if not known.spoke and now - known.since_s >= silence_s:
            return f"said nothing for {silence_s:g} s"
        if (bytes_received(fd, known.peer) or 0) > MAX_STRANGER_BYTES:
            return f"sent more than {MAX_STRANGER_BYTES // 1024} KiB without joining"
        return ""

    def _cut(self, number: int, fd: int) -> bool:
        known = self._known.pop(number, None)
        return known is not None and cut(fd, known.peer)
