"""The head's door for clients: one ROUTER, frames as in docs/api.md.

A client is its routing id, which libzmq gives to each connection. Nothing here waits for a
client: what one does not take is kept for it, in order and within limits, and tried again.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from bus.messages.api import MAX_FRAMES
from bus.transport import clock
from bus.transport.addresses import Binding, shared_context
from bus.transport.connections import ConnectionTable
from bus.transport.link_options import LAST, MORE, reap_dead_connections
from bus.transport.loop import Loop
from bus.transport.monitor import SocketMonitor, source_fd

#: A body has at most 8 MiB; one MiB more, so that a body a little over it gets an answer that says
#: so, instead of a cut connection.
MAX_FRAME_BYTES = 9 * 1024 * 1024
#: Messages per client inside libzmq. Few: each may hold a whole body.
HIGH_WATER_MESSAGES = 64
#: What waits for one client outside libzmq; head/server.py has its answers stop long before.
MAX_BACKLOG_MESSAGES = 8192
MAX_BACKLOG_BYTES = 64 * 1024 * 1024
#: How soon it is tried again, at first, and when a client takes nothing for long.
RETRY_S, MAX_RETRY_S = 0.005, 0.1
#: Milliseconds that replies get to leave when the door closes; nobody waits for it.
CLOSE_LINGER_MS = 500
#: Requests, and bytes of them, read at one go, before the loop sees to others.
MAX_BATCH = 256
MAX_BATCH_BYTES = 1024 * 1024


@dataclass(slots=True)
class _Backlog:
    messages: deque[list[bytes]] = field(default_factory=deque)
    size_bytes: int = 0


class ApiServer:
    """Owns the clients' ROUTER, its monitor and, for ipc, the lock on the path.

    Drive it with `attach(loop)`, then in each turn `receive()` and after it `gone()`.

    Args:
        address: `ipc:///path` or `tcp://host:port`; port 0 takes a free one.

    Raises:
        PortInUse: another head has the address.
        StartError: the address can not be used.
    """

    def __init__(self, address: str, now: Callable[[], float] = clock.now) -> None:
        self._now = now
        self._table = ConnectionTable()
        self._backlogs: dict[bytes, _Backlog] = {}
        self._retry_at: float | None = None
        self._retry_s = RETRY_S
        self._gone: dict[bytes, None] = {}
        self._loop: Loop | None = None
        self._router = shared_context().socket(zmq.ROUTER)
        _configure(self._router)
        self._monitor = SocketMonitor(self._router)
        try:
            self._binding = Binding(
                self._router, address, purpose="clients", setting="api.socket in head.toml"
            )
        except BaseException:
            self._monitor.close()
            self._router.close()
            raise

    @property
    def address(self) -> str:
        """The address as bound, with the port that 0 became."""
        return self._binding.address

    def attach(self, loop: Loop, on_ready: Callable[[], None]) -> None:
        """Let a loop watch the sockets; `on_ready` is called when `receive` has something."""
        self._loop = loop
        loop.add_reader(self._monitor.readable, self._watch)
        loop.add_reader(self._router, on_ready)
        loop.add_timer_source(self.next_timeout, self.handle_timeout)

    def receive(self) -> list[tuple[bytes, list[bytes]]]:
        """Requests that came, as many as fit a batch: `(client, [mark, body, blob...])`.

        Unchecked, but within the limit on a frame's size. Of one with more than `MAX_FRAMES` frames
        only the first so many and one more are kept, so that it can be refused.
        """
        self._watch()
        found: list[tuple[bytes, list[bytes]]] = []
        size_bytes = 0
        while len(found) < MAX_BATCH and size_bytes < MAX_BATCH_BYTES:
            try:
                client = self._router.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            frames = self._read_rest(client)
            size_bytes += sum(map(len, frames))
            found.append((client, frames))
        return found

    def send(self, client: bytes, frames: Sequence[bytes]) -> bool:
        """Queue a message for a client, behind what it has not taken yet.

        Returns:
            False when it was not kept: the client is gone, or as far behind as is allowed. The
            caller keeps what must not be lost and tries again later.
        """
        if client not in self._table:
            return False
        backlog = self._backlogs.get(client)
        if backlog is None:
            if self._try_send(client, frames):
                return True
            if client not in self._table:
                return False
            backlog = self._backlogs[client] = _Backlog()
            # Soon, however long another one takes nothing.
            self._retry_s = RETRY_S
            self._retry_at = self._now() + RETRY_S
        size = sum(map(len, frames))
        full = len(backlog.messages) >= MAX_BACKLOG_MESSAGES
        if full or backlog.size_bytes + size > MAX_BACKLOG_BYTES:
            return False
        backlog.messages.append(list(frames))
        backlog.size_bytes += size
        return True

    def backlog(self, client: bytes) -> int:
        """How many messages wait for a client outside libzmq."""
        backlog = self._backlogs.get(client)
        return 0 if backlog is None else len(backlog.messages)

    def gone(self) -> list[bytes]:
        """Clients whose connection ended since the last call.

        One whose last requests were still on their way may be named again after those.
        """
        found = list(self._gone)
        self._gone.clear()
        return found

    def next_timeout(self) -> float | None:
        """When kept messages are tried again."""
        return self._retry_at

    def handle_timeout(self, now: float) -> None:
        """Try kept messages again."""
        self._retry_at = None
        took = False
        for client, backlog in list(self._backlogs.items()):
            while backlog.messages and self._try_send(client, backlog.messages[0]):
                backlog.size_bytes -= sum(map(len, backlog.messages.popleft()))
                took = True
            if not backlog.messages:
                self._backlogs.pop(client, None)
        if self._backlogs:
            self._retry_s = RETRY_S if took else min(2 * self._retry_s, MAX_RETRY_S)
            self._retry_at = now + self._retry_s

    def close(self) -> None:
        """Close the door; last replies get a moment to leave. May be called again."""
        if self._router.closed:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._router)
            self._loop.remove_reader(self._monitor.readable)
            self._loop.remove_timer_source(self.handle_timeout)
        self._monitor.close()
        self._router.close(CLOSE_LINGER_MS)
        self._binding.close()

    def _watch(self) -> None:
        for client in self._table.apply(self._monitor.drain()):
            self._forget(client)

    def _read_rest(self, client: bytes) -> list[bytes]:
        if client not in self._table:
            first = self._router.recv(zmq.NOBLOCK, copy=False)
            self._watch()
            if not self._table.place(client, source_fd(first)):
                self._gone[client] = None
            frames = [first.bytes]
        else:
            frames = [self._router.recv(zmq.NOBLOCK)]
        while self._router.getsockopt(zmq.RCVMORE):
            part = self._router.recv(zmq.NOBLOCK)
            if len(frames) <= MAX_FRAMES:
                frames.append(part)
        return frames

    def _try_send(self, client: bytes, frames: Sequence[bytes]) -> bool:
        try:
            self._router.send(client, MORE)
            for frame in frames[:-1]:
                self._router.send(frame, MORE)
            self._router.send(frames[-1], LAST)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._table.remove(client)
            self._forget(client)
            return False
        return True

    def _forget(self, client: bytes) -> None:
        self._backlogs.pop(client, None)
        self._gone[client] = None


def _configure(router: zmq.Socket[bytes]) -> None:
    # A message to a client that left is an error we see, not one that vanishes.
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # A routing id that a stranger chose must not take over another client's replies.
    router.setsockopt(zmq.ROUTER_HANDOVER, 0)
    router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    router.setsockopt(zmq.SNDHWM, HIGH_WATER_MESSAGES)
    router.setsockopt(zmq.RCVHWM, HIGH_WATER_MESSAGES)
    # The head ends when told to, not when the slowest client has read everything.
    router.setsockopt(zmq.LINGER, 0)
    # Someone who connects and says nothing holds a descriptor for this long, in ms.
    router.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
    reap_dead_connections(router)
