"""What came over a connection and did not come out of it as frames.

libzmq keeps the parts of a message until its last part, without a limit; one that never ends fills
the memory of whoever listens, or dials. The kernel counts what comes in, so it is seen.
"""

from __future__ import annotations

from bus.transport.cutting import bytes_received, cut

#: Some bytes are on their way to us: frames that wait in libzmq, no more than an honest peer's
#: windows let it send, and the kernel's buffer before them. All beyond makes no frame.
MAX_UNREAD_BYTES = 32 * 1024 * 1024
#: ZMTP's own heartbeats are no frames; they take less than this.
PING_BYTES_PER_S = 32


class UnreadBytes:
    """Of one connection.

    Args:
        fd: its descriptor; libzmq may close it at any time.
        peer: who is on the other side, as `peer_of` gave it.
        now: when it was made.
    """

    def __init__(self, fd: int, peer: bytes, now: float) -> None:
        self._fd = fd
        self._peer = peer
        self._since_s = now
        self._read = 0

    def read(self, length: int) -> None:
        """A frame of so many bytes came out; ZMTP put a header before it."""
        self._read += length + (2 if length <= 255 else 9)

    def received(self) -> int:
        """Bytes that came in; 0 where nobody counts them (ipc)."""
        return bytes_received(self._fd, self._peer) or 0

    def too_many(self, received: int, now: float) -> bool:
        """Whether more came in than can be on its way."""
        pings = PING_BYTES_PER_S * (now - self._since_s)
        return received - self._read - pings > MAX_UNREAD_BYTES

    def cut(self) -> bool:
        """End the connection at once; False when it has gone."""
        return cut(self._fd, self._peer)
