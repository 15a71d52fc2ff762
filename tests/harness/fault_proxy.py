"""A TCP path between a head and an agent whose faults are switched while it carries.

It reads ZMTP, so that a fault can hit a certain message of a handshake, and old frames can be put
between new ones. What each side sends is passed on message by message; what it sent is recorded.

    proxy.now(lambda path: path.cut(reset=True))        every open connection, at once
    proxy.next(Sender.TARGET, 0, fault)                 the next connection, at that message

The dialer is whoever connects to the proxy (the agent when it joins, the head when it dials), the
target whoever listens behind it.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self, TypeVar

from bus.transport import clock

#: Bytes that wait for a receiver before the sender is not read any more.
MAX_WAITING_BYTES = 256 * 1024
#: Messages recorded of each direction: the first ones and the newest.
RECORD_FIRST = 4
RECORD_LAST = 64
RESET = struct.pack("ii", 1, 0)
_GREETING_BYTES = 64
_LONG, _COMMAND = 0x02, 0x04

T = TypeVar("T")


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


class Path:
    """One connection over the proxy. All of it runs in the proxy's thread."""

    def __init__(self, dialer: socket.socket, target: socket.socket) -> None:
        self.flows = {
            Sender.DIALER: Flow(dialer, target),
            Sender.TARGET: Flow(target, dialer),
        }
        self.faults: list[tuple[Sender, int, Fault]] = []
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
            _end(flow.source, reset=reset)

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

    def slow(self, bytes_per_s: float) -> None:
        """Both directions pass no more than so much; 0 lifts that."""
        for flow in self.flows.values():
            flow.rate = Rate(bytes_per_s, bytes_per_s / 20) if bytes_per_s else None

    def insert(self, sender: Sender, data: bytes) -> None:
        """Put bytes into a direction, as if the sender had sent them now."""
        self.flows[sender].waiting += data

    def hold_and_leave(self, proxy: FaultProxy, messages: int, behind: int) -> None:
        """The dialer loses it while its last messages are on their way; they come late.

        Args:
            proxy: carries the next connection too.
            messages: so many are held before the dialer's side is reset.
            behind: they arrive when the next connection has passed on so many of the dialer's.
        """
        flow = self.flows[Sender.DIALER]
        flow.held = True

        def leave(path: Path) -> None:
            _end(flow.source, reset=True)
            flow.ended = True
            path.discard(Sender.TARGET)
            proxy.expect(Sender.DIALER, behind, lambda _: path.arrive_late())

        self.when(Sender.DIALER, flow.messages + messages - 1, leave)

    def arrive_late(self) -> None:
        self.flows[Sender.DIALER].held = False

    def recorded(self, sender: Sender) -> bytes:
        """The first and the newest messages that a side sent, each once."""
        flow = self.flows[sender]
        newest = flow.last[max(0, len(flow.first) + len(flow.last) - flow.messages) :]
        return b"".join((*flow.first, *newest))

    def when(self, sender: Sender, message: int, fault: Fault) -> None:
        """Let `fault` happen right after a side's message of this number, counted from 0."""
        self.faults.append((sender, message, fault))

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
            if not flow.swallowed:
                flow.waiting += piece
            if is_message:
                flow.note(piece)
                self._fire(sender, flow.messages - 1)

    def _fire(self, sender: Sender, message: int) -> None:
        due = [found for found in self.faults if found[:2] == (sender, message)]
        self.faults = [found for found in self.faults if found not in due]
        for _, _, fault in due:
            fault(self)

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


Fault = Callable[[Path], None]


class FaultProxy:
    """A path from `address` to a target, in a thread of its own.

    Args:
        target: `tcp://host:port`; None until `set_target`, connections are refused so long.
    """

    def __init__(self, target: str | None = None) -> None:
        self._target: tuple[str, int] | None = None
        if target is not None:
            self.set_target(target)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._paths: list[Path] = []
        self._expected: list[tuple[Sender, int, Fault]] = []
        self._rate = 0.0
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._near, self._far = socket.socketpair()
        self._far.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="fault-proxy")

    # --- for the test, from its thread --------------------------------------------------------

    def set_target(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").split(":")
        self._target = (host, int(port))

    def now(self, fault: Fault) -> None:
        """Let a fault happen to every open connection."""

        def happen() -> None:
            for path in list(self._paths):
                fault(path)

        self.call(happen)

    def next(self, sender: Sender, message: int, fault: Fault) -> None:
        """Let a fault happen to the next connection, right after that message of a side."""
        self.call(functools.partial(self.expect, sender, message, fault))

    def slow(self, bytes_per_s: float) -> None:
        """Pass no more than so much in each direction, from now on; 0 lifts that."""

        def change() -> None:
            self._rate = bytes_per_s
            for path in self._paths:
                path.slow(bytes_per_s)

        self.call(change)

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return self.call(lambda: len(self._paths))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the proxy's thread, between two of its steps; gives its result."""
        done: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._calls.put(lambda: done.put(function()))
        self._near.send(b"!")
        return done.get(timeout=30.0)

    def expect(self, sender: Sender, message: int, fault: Fault) -> None:
        """As `next`; for faults, which run in the proxy's thread."""
        self._expected.append((sender, message, fault))

    # --- the thread ---------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._turn():
            pass
        for path in self._paths:
            path.cut(reset=False)
        self._server.close()
        self._far.close()

    def _turn(self) -> bool:
        """One step; False when it is to end."""
        now = clock.now()
        poller = select.poll()
        poller.register(self._server, select.POLLIN)
        poller.register(self._far, select.POLLIN)
        readers: dict[int, tuple[Path, Sender]] = {}
        writers: dict[int, tuple[Path, Sender]] = {}
        for path in self._paths:
            for sender, flow in path.flows.items():
                if flow.wants_read:
                    readers[flow.source.fileno()] = (path, sender)
                if flow.wants_write:
                    if flow.rate is None:
                        writers[flow.sink.fileno()] = (path, sender)
                    else:
                        path.write(sender, now)
        for fd in readers.keys() | writers.keys():
            wanted = select.POLLIN * (fd in readers) | select.POLLOUT * (fd in writers)
            if fd >= 0:
                poller.register(fd, wanted)
        limited = any(flow.rate for path in self._paths for flow in path.flows.values())
        for fd, happened in poller.poll(10 if limited else 1000):
            if fd == self._server.fileno():
                self._accept()
            elif fd == self._far.fileno():
                self._far.recv(4096)
            if fd in readers and happened & ~select.POLLOUT:
                self._step(readers[fd], Path.read)
            if fd in writers and happened & select.POLLOUT:
                self._step(writers[fd], lambda path, sender: path.write(sender, now))
        going = self._run_calls()
        self._paths = [path for path in self._paths if not path.closed]
        return going

    @staticmethod
    def _step(place: tuple[Path, Sender], step: Callable[[Path, Sender], None]) -> None:
        path, sender = place
        if not path.closed:
            step(path, sender)

    def _run_calls(self) -> bool:
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is None:
                    return False
                call()
        return True

    def _accept(self) -> None:
        dialer, _ = self._server.accept()
        try:
            if self._target is None:
                raise ConnectionRefusedError
            target = socket.create_connection(self._target, timeout=5.0)
        except OSError:
            _end(dialer, reset=True)
            return
        for each in (dialer, target):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        path = Path(dialer, target)
        path.faults, self._expected = self._expected, []
        if self._rate:
            path.slow(self._rate)
        self._paths.append(path)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._calls.put(None)
        self._near.send(b"!")
        self._thread.join()
        self._near.close()


def _end(one: socket.socket, *, reset: bool) -> None:
    with contextlib.suppress(OSError):
        if reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        else:
            # Also when unread bytes make the kernel send an RST at the close.
            one.shutdown(socket.SHUT_WR)
    one.close()
