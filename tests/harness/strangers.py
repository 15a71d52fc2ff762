"""Peers that speak ZMTP byte by byte, so that they can stop, lie or be many."""

from __future__ import annotations

import os
import socket
import struct
from typing import Self

from bus.closing import Closing
from bus.endpoint import Endpoint
from bus.link import LinkIdentity

#: ZMTP 3.1, mechanism NULL, and a READY that says DEALER.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
READY = b"\x04" + bytes([len(_READY)]) + _READY


def zmtp_frame(payload: bytes, *, announce: int | None = None) -> bytes:
    """One message of one part; `announce` is the length that its header tells."""
    length = len(payload) if announce is None else announce
    return b"\x02" + struct.pack(">Q", length) + payload


def hello_of(identity: LinkIdentity) -> bytes:
    """A Hello frame that this process's peer would take."""
    made = Endpoint(identity, initiator=True, entropy=os.urandom)
    made.connect(0.0)
    hello = made.next_frame()
    assert hello is not None
    return hello


class Stranger(Closing):
    """A TCP connection to a ROUTER; says what it is told to say.

    Args:
        address: of the ROUTER.
        source: where it comes from, such as 127.0.0.9.
    """

    def __init__(self, address: str, source: str = "") -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self.socket = socket.create_connection((host, int(port)), source_address=(source, 0))

    def greet(self, greeting: bytes = GREETING + READY) -> Self:
        """Finish ZMTP's own handshake, as any ZeroMQ peer does.

        Args:
            greeting: all there is to say up to then, and what may follow.
        """
        # libzmq takes nothing beyond the first signature before it has sent its own.
        for step in (greeting[:10], greeting[10:64], greeting[64:]):
            self.socket.sendall(step)
            self._hear(64 if step == greeting[10:64] else 0)
        return self

    def _hear(self, count: int) -> None:
        while count:
            count -= len(self.socket.recv(count))

    def say(self, data: bytes) -> None:
        """Send raw bytes; a connection that was ended meanwhile takes none, which is fine."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    @property
    def is_cut(self) -> bool:
        """Whether the other side ended the connection."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(65536):
                pass
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        finally:
            self.socket.setblocking(True)
        return True

    def close(self) -> None:
        self.socket.close()
