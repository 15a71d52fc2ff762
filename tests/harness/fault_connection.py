"""One TCP connection whose bytes a proxy carries, and what can go wrong with it.

It reads ZMTP, so that a fault can hit a certain message, and old messages can be put between new
ones. What each side sends is passed on message by message; what it sent is recorded.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

#: Bytes that wait for a receiver before the sender is not read any more.
MAX_WAITING_BYTES = 256 * 1024
#: Messages recorded of each direction: the first ones and the newest.
RECORD_FIRST = 4
RECORD_LAST = 64
_RESET = struct.pack("ii", 1, 0)
_GREETING_BYTES = 64
_LONG, _COMMAND = 0x02, 0x04


class Sender(Enum):
    """A direction, by who sends."""

    DIALER = "dialer"
    TARGET = "target"


class ZmtpReader:
    """Cuts one direction's bytes into what may be passed on: greeting, commands, messages."""

    def __init__(self) -> None:
        self._greeting_left = _GREETING_BYTES
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """Whole pieces: (whether it is a message, its bytes with their ZMTP header)."""
        found: list[tuple[bool, bytes]] = []
        greeting, data = data[: self._greeting_left], data[self._greeting_left :]
        self._greeting_left -= len(greeting)
        if greeting:
            found.append((False, greeting))
        self._buffer += data
        while (length := self._next_length()) is not None:
            is_message = not self._buffer[0] & _COMMAND
            found.append((is_message, bytes(self._buffer[:length])))
            del self._buffer[:length]
        return found

    def _next_length(self) -> int | None:
        buffer = self._buffer
        header = 9 if buffer and buffer[0] & _LONG else 2
        if len(buffer) < header:
            return None
        length = header + int.from_bytes(buffer[1:header], "big")
        return length if len(buffer) >= length else None


@dataclass(slots=True)
class Rate:
    """A token bucket of bytes."""

    bytes_per_s: float
    burst: float
    level: float = 0.0
    at: float = 0.0

    def take(self, wanted: int, now: float) -> int:
        gained = (now - self.at) * self.bytes_per_s if self.at else self.burst
        self.level, self.at = min(self.burst, self.level + gained), now
        taken = min(wanted, int(self.level))
        self.level -= taken
        return taken


@dataclass(slots=True)
class Flow:
    """One direction of a connection."""

    source: socket.socket
    sink: socket.socket
    reader: ZmtpReader = field(default_factory=ZmtpReader)
    waiting: bytearray = field(default_factory=bytearray)
    #: Messages seen so far, and the bytes of the first and the newest of them.
    messages: int = 0
    first: list[bytes] = field(default_factory=list)
    last: list[bytes] = field(default_factory=list)
    #: Not read: the sender's buffers fill up.
    stalled: bool = False
    #: Read and not passed on until further notice.
    held: bool = False
    #: Read and thrown away.
    swallowed: bool = False
    rate: Rate | None = None
    #: Changes the next message, once.
    harm: Callable[[bytes], bytes] | None = None
    ended: bool = False

    def note(self, message: bytes) -> None:
        self.messages += 1
        if len(self.first) < RECORD_FIRST:
            self.first.append(message)
        self.last.append(message)
        del self.last[:-RECORD_LAST]

    @property
    def wants_read(self) -> bool:
        full = len(self.waiting) >= MAX_WAITING_BYTES
        return not (self.ended or self.stalled or full)

    @property
    def wants_write(self) -> bool:
        return bool(self.waiting) and not self.held


class Connection:
    """One connection over the proxy. All of it runs in the proxy's thread."""

    def __init__(self, dialer: socket.socket, target: socket.socket) -> None:
        self.flows = {
            Sender.DIALER: Flow(dialer, target),
            Sender.TARGET: Flow(target, dialer),
        }
        self.pending: list[Pending] = []
        self.closed = False
        self._on_close: list[Callable[[], None]] = []

    # --- faults -------------------------------------------------------------------------------

    def cut(self, *, reset: bool) -> None:
        """End it at both sides: with RST, or with FIN after half of what waits."""
        if self.closed:
            return
        self.closed = True
        for flow in self.flows.values():
            with contextlib.suppress(OSError):
                flow.sink.send(flow.waiting[: len(flow.waiting) // 2])
        for flow in self.flows.values():
            end(flow.source, reset=reset)

    def half_open(self) -> None:
        """Both sides go on believing in it, and nothing arrives any more."""
        for sender in self.flows:
            self.discard(sender)

    def discard(self, sender: Sender) -> None:
        """Nothing of this direction arrives any more."""
        self.flows[sender].swallowed = True
        self.flows[sender].waiting.clear()

    def stall(self, sender: Sender) -> None:
        """One direction stands still; the other goes on."""
        self.flows[sender].stalled = self.flows[sender].held = True

    def harm(self, sender: Sender, change: Callable[[bytes], bytes]) -> None:
        """Change a side's next message, given with its ZMTP header."""
        self.flows[sender].harm = change

    def slow(self, bytes_per_s: float) -> None:
        """Both directions pass no more than so much; 0 lifts that."""
        for flow in self.flows.values():
            flow.rate = Rate(bytes_per_s, bytes_per_s / 20) if bytes_per_s else None

    def insert(self, sender: Sender, data: bytes) -> None:
        """Put bytes into a direction, as if the sender had sent them now."""
        self.flows[sender].waiting += data

    def arrive_late(self, expect: Expect, *, held: int, behind: int) -> None:
        """The dialer loses it with its last messages on their way; they come behind new ones.

        Args:
            expect: of the proxy that carries the next connection too.
            held: so many messages more are held back before the dialer's side is reset.
            behind: they arrive when the next connection has passed on so many of the dialer's.
        """
        flow = self.flows[Sender.DIALER]
        flow.held = True

        def release(_: Connection) -> None:
            flow.held = False

        def leave(_: Connection) -> None:
            end(flow.source, reset=True)
            flow.ended = True
            self.discard(Sender.TARGET)
            expect(Pending(Sender.DIALER, behind, release))

        if held:
            self.pending.append(Pending(Sender.DIALER, held, leave))
        else:
            leave(self)

    def play_again(self, expect: Expect, *, behind: int) -> None:
        """Cut it; what both sides had sent comes once more on the next connection.

        Args:
            expect: of the proxy that carries the next connection too.
            behind: each side's comes when the next one has passed on so many of that side.
        """
        for sender in self.flows:
            again = self.recorded(sender)
            expect(Pending(sender, behind, _inserting(sender, again)))
        self.cut(reset=True)

    def recorded(self, sender: Sender) -> bytes:
        """The first and the newest messages that a side sent, each once."""
        flow = self.flows[sender]
        newest = flow.last[max(0, len(flow.first) + len(flow.last) - flow.messages) :]
        return b"".join((*flow.first, *newest))

    # --- carrying -----------------------------------------------------------------------------

    def read(self, sender: Sender) -> None:
        flow = self.flows[sender]
        try:
            data = flow.source.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._source_ended(flow)
            return
        for is_message, piece in flow.reader.feed(data):
            if is_message:
                flow.note(piece)
            self._pass_on(flow, piece, harmed=is_message)
            if is_message:
                self._fire(sender, len(piece))

    def _pass_on(self, flow: Flow, piece: bytes, *, harmed: bool) -> None:
        if harmed and flow.harm is not None:
            piece, flow.harm = flow.harm(piece), None
        if not flow.swallowed:
            flow.waiting += piece

    def _fire(self, sender: Sender, size: int) -> None:
        for each in self.pending:
            each.left -= each.sender is sender and size >= each.least_bytes
        due = [each for each in self.pending if not each.left]
        self.pending = [each for each in self.pending if each.left]
        for each in due:
            each.fault(self)

    def _source_ended(self, flow: Flow) -> None:
        flow.ended = True
        all_ended = all(each.ended for each in self.flows.values())
        if all_ended or not (flow.swallowed or flow.held or flow.waiting):
            self.cut(reset=False)

    def write(self, sender: Sender, now: float) -> None:
        flow = self.flows[sender]
        size = len(flow.waiting)
        if flow.rate is not None:
            size = flow.rate.take(size, now)
        if not size:
            return
        try:
            sent = flow.sink.send(flow.waiting[:size])
        except BlockingIOError:
            return
        except OSError:
            self.cut(reset=False)
            return
        del flow.waiting[:sent]
        if flow.ended and not flow.waiting:
            self.cut(reset=False)


Fault = Callable[[Connection], None]


@dataclass(slots=True)
class Pending:
    """A fault that happens right after a side has sent `left` more messages of a size."""

    sender: Sender
    left: int
    fault: Fault
    least_bytes: int = 0


#: Lets a fault wait for messages of the next connection.
Expect = Callable[[Pending], None]


def _inserting(sender: Sender, data: bytes) -> Fault:
    return lambda path: path.insert(sender, data)


def end(one: socket.socket, *, reset: bool) -> None:
    """Close a socket with an RST, or with a FIN."""
    with contextlib.suppress(OSError):
        if reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            # Also when unread bytes make the kernel send an RST at the close.
            one.shutdown(socket.SHUT_WR)
    one.close()
