"""A TCP path between a head and an agent whose faults are switched while it carries.

    proxy.now(lambda link: link.cut(reset=True))        the newest connection, at once
    proxy.next(Sender.TARGET, 1, fault)                 the next connection, at that message

The dialer is whoever connects to the proxy (the agent when it joins, the head when it dials), the
target whoever listens behind it.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import select
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from bus.transport import clock
from tests.harness.fault_connection import Connection, Fault, Pending, Sender, end

RECEIVE_BUFFER_BYTES = 64 * 1024
#: Milliseconds between two portions of a direction that has a rate.
RATE_MS = 10
T = TypeVar("T")
_Wanting = dict[int, tuple[Connection, Sender]]


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
        self._connections: list[Connection] = []
        self._newest: Connection | None = None
        self._expected: list[Pending] = []
        self._rate = 0.0
        self._refuses = False
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._near, self._far = socket.socketpair()
        self._far.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="fault-proxy")

    # --- for the test, from its thread --------------------------------------------------------

    def set_target(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").split(":")
        self._target = (host, int(port))

    def refuse(self, refuses: bool = True) -> None:
        """Take no connection from now on, or take them again."""

        def change() -> None:
            self._refuses = refuses

        self.call(change)

    def now(self, fault: Fault) -> None:
        """Let a fault happen to the newest connection, if it is open."""

        def happen() -> None:
            if self._newest is not None and not self._newest.closed:
                fault(self._newest)

        self.call(happen)

    def next(self, sender: Sender, number: int, fault: Fault) -> None:
        """Let a fault happen to the next connection, after the message of that number (from 1)."""
        self.call(functools.partial(self.expect, Pending(sender, number, fault)))

    def soon(self, sender: Sender, messages: int, fault: Fault, *, least_bytes: int = 0) -> None:
        """Let a fault happen to the newest connection when a side has sent so many more.

        Args:
            least_bytes: only messages of that size count.
        """
        self.now(lambda link: link.pending.append(Pending(sender, messages, fault, least_bytes)))

    def slow(self, bytes_per_s: float) -> None:
        """Pass no more than so much in each direction, from now on; 0 lifts that."""

        def change() -> None:
            self._rate = bytes_per_s
            for each in self._connections:
                each.slow(bytes_per_s)

        self.call(change)

    def recorded(self, sender: Sender) -> bytes:
        """What a side of the newest connection sent, after ZMTP's handshake."""
        return self.call(lambda: self._newest.recorded(sender) if self._newest else b"")

    @property
    def struck(self) -> bool:
        """Whether every fault has happened that waited for a message."""
        return self.call(lambda: not self._expected and not (self._newest and self._newest.pending))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the proxy's thread, between two of its steps; gives its result."""
        done: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._calls.put(lambda: done.put(function()))
        self._near.send(b"!")
        return done.get(timeout=30.0)

    def expect(self, pending: Pending) -> None:
        """As `next`; for faults, which run in the proxy's thread."""
        self._expected.append(pending)

    # --- the thread ---------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._turn():
            pass
        for each in self._connections:
            each.cut(reset=False)
        self._server.close()
        self._far.close()

    def _turn(self) -> bool:
        """One step; False when it is to end."""
        now = clock.now()
        poller = select.poll()
        poller.register(self._server, select.POLLIN)
        poller.register(self._far, select.POLLIN)
        readers, writers = self._wanting(now)
        for fd in readers.keys() | writers.keys():
            if fd >= 0:
                wanted = select.POLLIN * (fd in readers) | select.POLLOUT * (fd in writers)
                poller.register(fd, wanted)
        limited = any(flow.rate for each in self._connections for flow in each.flows.values())
        for fd, happened in poller.poll(RATE_MS if limited else None):
            if fd == self._server.fileno():
                self._accept()
            elif fd == self._far.fileno():
                self._far.recv(4096)
            for found, bits in ((readers, ~select.POLLOUT), (writers, select.POLLOUT)):
                connection, sender = found.get(fd, (None, Sender.DIALER))
                if connection is None or connection.closed or not happened & bits:
                    continue
                if found is readers:
                    connection.read(sender)
                else:
                    connection.write(sender, now)
        going = self._run_calls()
        self._connections = [each for each in self._connections if not each.closed]
        return going

    def _wanting(self, now: float) -> tuple[_Wanting, _Wanting]:
        """By descriptor, the directions to read and to write; those with a rate are written."""
        readers: _Wanting = {}
        writers: _Wanting = {}
        for each in self._connections:
            for sender, flow in each.flows.items():
                if flow.wants_read:
                    readers[flow.source.fileno()] = (each, sender)
                if flow.wants_write and flow.rate is None:
                    writers[flow.sink.fileno()] = (each, sender)
                elif flow.wants_write:
                    each.write(sender, now)
        return readers, writers

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
            if self._target is None or self._refuses:
                raise ConnectionRefusedError
            target = socket.create_connection(self._target, timeout=5.0)
        except OSError:
            end(dialer, reset=True)
            return
        for one in (dialer, target):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A path that is slow should not hide it in its buffers.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        made = Connection(dialer, target)
        made.pending, self._expected = self._expected, []
        made.slow(self._rate)
        self._connections.append(made)
        self._newest = made

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
