"""What happens to a socket's connections, as small events.

Without a monitor a ROUTER learns of a dead peer only when a send fails, and a DEALER does not
notice that its server was started anew. Whoever has a monitor must drain it in every turn, before
the frames of its socket: libzmq's I/O thread stops when some 2,000 events lie unread.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from enum import Enum

import zmq
from zmq.utils.monitor import parse_monitor_message

from bus.transport.source_poll import is_readable

#: A monitor's default address carries the descriptor number, which is used again while the old
#: address may still be bound (`Address already in use`).
_numbers = itertools.count(1)


class Happening(Enum):
    """What happened to a connection."""

    #: An outgoing connection stands; `value` is its descriptor. The handshake is still to come.
    CONNECTED = int(zmq.EVENT_CONNECTED)
    #: A first attempt did not succeed at once (usual for tcp).
    CONNECT_DELAYED = int(zmq.EVENT_CONNECT_DELAYED)
    #: An attempt failed; the next one follows after `value` milliseconds.
    CONNECT_RETRIED = int(zmq.EVENT_CONNECT_RETRIED)
    #: An incoming connection; `value` is its descriptor.
    ACCEPTED = int(zmq.EVENT_ACCEPTED)
    #: A descriptor was closed: of a connection after a failure, or the listening one.
    CLOSED = int(zmq.EVENT_CLOSED)
    #: A connection that stood ended; `value` was its descriptor.
    DISCONNECTED = int(zmq.EVENT_DISCONNECTED)
    #: ZMTP's own handshake succeeded: a libzmq is on the other side.
    HANDSHAKE_SUCCEEDED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    #: ... or failed: something else answered, or closed the connection; `value` is an errno.
    HANDSHAKE_FAILED = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    HANDSHAKE_FAILED_PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    HANDSHAKE_FAILED_AUTH = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)


#: Outcomes of ZMTP's handshake that are no success.
HANDSHAKE_FAILURES = frozenset(
    {
        Happening.HANDSHAKE_FAILED,
        Happening.HANDSHAKE_FAILED_PROTOCOL,
        Happening.HANDSHAKE_FAILED_AUTH,
    }
)
_KNOWN = {happening.value: happening for happening in Happening}
_MASK = sum(_KNOWN)


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """One event; what `value` means depends on `happening`."""

    happening: Happening
    value: int


def source_fd(frame: zmq.Frame) -> int:
    """The descriptor that a frame came over; -1 when libzmq can not tell (very old peers)."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def source_host(frame: zmq.Frame) -> str | None:
    """The network address that a frame came from; None when libzmq can not tell."""
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return None


class SocketMonitor:
    """Watches one socket. Owns its own end of the event pipe; close it before its socket.

    Args:
        socket: the socket to watch; start watching before it binds or connects, or events of its
            first connections are missed.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._watched = socket
        address = f"inproc://superfluid-monitor-{os.getpid()}-{next(_numbers)}"
        socket.monitor(address, _MASK)
        self._events: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        # Events of a socket that is closing are of no use to anybody.
        self._events.setsockopt(zmq.LINGER, 0)
        self._events.connect(address)

    @property
    def readable(self) -> zmq.Socket[bytes]:
        """The socket that a loop polls; read through `drain`."""
        return self._events

    def drain(self) -> list[ConnectionEvent]:
        """Everything that happened since the last call, oldest first."""
        found: list[ConnectionEvent] = []
        while not self._events.closed and is_readable(self._events):
            parsed = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))
            happening = _KNOWN.get(int(parsed["event"]))
            if happening is not None:
                found.append(ConnectionEvent(happening, int(parsed["value"])))
        return found

    def close(self) -> None:
        """Stop watching. May be called again."""
        if self._events.closed:
            return
        if not self._watched.closed:
            self._watched.disable_monitor()
        self._events.close()
