"""The listening end of links: one ROUTER that drives an `Acceptor`.

Each turn: drain the monitor, read frames (a bounded piece of work, from all peers in turn), and
only when none is left tell the acceptor which connections ended, since a peer's last frame (its
Goodbye) lies in the queue when its end is announced.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import zmq

from bus.acceptor import Acceptor
from bus.link import LinkEvent, PeerRefused
from bus.transport import clock
from bus.transport.addresses import Binding, shared_context
from bus.transport.connections import ConnectionTable
from bus.transport.link_options import GOODBYE_LINGER_MS, LAST, MORE, configure_router
from bus.transport.loop import Loop
from bus.transport.monitor import (
    SocketMonitor,
    source_fd,
    source_host,
)
from bus.transport.reading import ReadBudget
from bus.transport.routing_ids import RoutingIds, seed_routing_ids
from bus.transport.strangers import Strangers

#: Under a flood the queue never runs dry: an end is told this late, in seconds. A peer's last
#: frames are few, and have their turn with everybody's before that.
ENDS_WITHIN_S = 1.0
#: Strangers are read at most so often, in seconds: a turn for each of 1,000 bad Hellos a second
#: costs twice what the Hellos do. Frames of links wait as long, but only while there are such.
STRANGERS_EVERY_S = 0.005
_ENDED = "it ended, or the network between did"


class RouterLinks:
    """Owns the ROUTER, its monitor and, for ipc, the lock on the path.

    Drive it with `attach(loop)`; in each turn take `events()`, send, and `flush(now)` last.

    Args:
        bind_address: `tcp://host:port` or `ipc:///path`; port 0 takes a free one.
        acceptor: all protocol state; nobody else feeds it.
        purpose: who connects here, for errors.
        setting: what a person changes to get another address, for errors.

    Raises:
        PortInUse: another process has the address.
        StartError: the address can not be used.
    """

    def __init__(
        self,
        bind_address: str,
        acceptor: Acceptor,
        *,
        purpose: str = "nodes",
        setting: str = "fleet.bind in head.toml",
        now: Callable[[], float] = clock.now,
    ) -> None:
        self.acceptor = acceptor
        self._now = now
        self._table = ConnectionTable()
        self._strangers = Strangers(self._table)
        self._refused: list[tuple[bytes, LinkEvent]] = []
        #: By return address: the host it came from, which failed handshakes are counted by.
        self._host_of: dict[bytes, bytes] = {}
        #: Addresses whose connection ended, while frames of theirs may still be unread.
        self._ending: list[bytes] = []
        #: Since when the oldest of them waits.
        self._ending_since: float | None = None
        #: A stranger's frame was read.
        self._strange = False
        self._loop: Loop | None = None
        seed_routing_ids()
        self._router = shared_context().socket(zmq.ROUTER)
        configure_router(self._router)
        self._given = RoutingIds(self._router)
        self._monitor = SocketMonitor(self._router)
        try:
            self._binding = Binding(self._router, bind_address, purpose=purpose, setting=setting)
        except BaseException:
            self._monitor.close()
            self._router.close()
            raise

    @property
    def address(self) -> str:
        """The address as bound, with the port that 0 became."""
        return self._binding.address

    def attach(self, loop: Loop) -> None:
        """Let a loop watch the sockets and fire the links' timers."""
        self._loop = loop
        loop.add_reader(self._monitor.readable, self.pump)
        loop.add_reader(self._router, self._take_frames)
        loop.add_timer_source(self.acceptor.next_timeout, self.acceptor.handle_timeout)
        loop.add_timer_source(self._strangers.next_timeout, self._check_strangers)

    def events(self) -> list[tuple[bytes, LinkEvent]]:
        """What happened since the last call: `(return address, event)`, in order.

        The address of one who never said anything is empty.
        """
        refused, self._refused = self._refused, []
        return refused + self.acceptor.events()

    def send(self, address: bytes, message: Any) -> bool:
        """Queue a message on the link of an address; False when no link is up there.

        Raises:
            TooLarge: it is longer than any message may be.
        """
        endpoint = self.acceptor.endpoint(address)
        return endpoint is not None and endpoint.send(message)

    def close_link(self, address: bytes, reason: str) -> None:
        """End one link with a Goodbye, which the next `flush` sends."""
        endpoint = self.acceptor.endpoint(address)
        if endpoint is not None:
            endpoint.close(reason, self._now())

    def host_of(self, address: bytes) -> str:
        """The host that an address came from; empty on ipc, or when it is gone."""
        return self._host_of.get(address, b"").decode()

    def cut(self, address: bytes) -> bool:
        """End the connection behind an address at once, without a word; False when it has gone."""
        return self._strangers.cut(address)

    def pump(self) -> None:
        """Take in connection events and frames."""
        self._watch()
        self._take_frames()

    def _take_frames(self) -> None:
        """Take in frames; the events of a connection that is new are looked at with its first."""
        if self._read():
            self._end_connections()
        elif self._ending:
            now = self._now()
            if self._ending_since is None:
                self._ending_since = now
            elif now - self._ending_since > ENDS_WITHIN_S:
                self._end_connections()
        if self._strange and self._loop is not None:
            self._strange = False
            self._loop.rest(self._router, STRANGERS_EVERY_S)
            self._loop.rest(self._monitor.readable, STRANGERS_EVERY_S)

    def flush(self, now: float) -> None:
        """Hand frames to the socket until there are none, or it takes none."""
        while frames := self.acceptor.frames_to_send(now):
            for address, frame in frames:
                self._send_frame(address, frame, now)

    def close(self, reason: str) -> None:
        """End all links with a Goodbye and close. May be called again."""
        if self._router.closed:
            return
        now = self._now()
        self.acceptor.close(reason, now)
        self.flush(now)
        if self._loop is not None:
            self._loop.remove_reader(self._router)
            self._loop.remove_reader(self._monitor.readable)
            self._loop.remove_timer_source(self.acceptor.handle_timeout)
            self._loop.remove_timer_source(self._check_strangers)
        self._monitor.close()
        self._router.close(GOODBYE_LINGER_MS)
        self._binding.close()

    # --- inside -------------------------------------------------------------------------------

    def _watch(self) -> None:
        events = self._monitor.drain()
        if not events:
            return
        gone = self._table.apply(events)
        self._ending += gone
        self._strangers.note(events, self._now())

    def _read(self) -> bool:
        """Read frames, of all peers in turn; False when the budget ended and more may be there."""
        budget = ReadBudget(self._now)
        while True:
            try:
                address = self._router.recv(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if not budget.spend(self._receive(address)):
                if self._loop is not None:
                    self._loop.end_reading()
                return False

    def _receive(self, address: bytes) -> int:
        """Read one frame of a peer; gives its length in bytes."""
        if address in self._table:
            data = self._router.recv(zmq.NOBLOCK)
            length = len(data)
        else:
            frame = self._router.recv(zmq.NOBLOCK, copy=False)
            data = frame.bytes
            length = len(data)
            if not self._place(address, frame):
                data = b""  # Nothing of it is taken.
        whole = True
        self._strangers.read(address, len(data))
        while self._router.getsockopt(zmq.RCVMORE):
            # Link-F has one part per frame; more of them come from somebody else.
            length += len(self._router.recv(zmq.NOBLOCK))
            whole = False
        if whole:
            self.acceptor.receive(address, data, self._now(), peer_key=self._host_of.get(address))
        self._strange |= not self.acceptor.is_admitted(address)
        return length

    def _place(self, address: bytes, frame: zmq.Frame) -> bool:
        """Note where a new address is; False when its peer chose it, and is cut for that."""
        # Its ACCEPTED event is there by now; see ConnectionTable.
        self._watch()
        if not self._table.place(address, source_fd(frame)):
            self._ending.append(address)
            return True
        if not self._given.gave(address, self._table.accepted):
            self._strangers.cut(address)
            text = "a peer connected and chose its own return address; it was cut off"
            self._refused.append((b"", PeerRefused("connection_closed", text)))
            return False
        if self.address.startswith("tcp:") and (host := source_host(frame)):
            self._host_of[address] = host.encode()
        return True

    def _end_connections(self) -> None:
        ending, self._ending = self._ending, []
        self._ending_since = None
        for address in ending:
            self._host_of.pop(address, None)
            self.acceptor.disconnected(address, _ENDED, self._now())

    def _send_frame(self, address: bytes, frame: bytes, now: float) -> None:
        try:
            self._router.send(address, MORE)
            self._router.send(frame, LAST)
        except zmq.Again:
            self.acceptor.frame_refused(address, now)
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._table.remove(address)
            self._host_of.pop(address, None)
            self.acceptor.disconnected(address, _ENDED, now)
            if self._loop is not None:
                self._loop.wakeup()  # The owner took this turn's events already.

    def _check_strangers(self, now: float) -> None:
        admitted, linked = self.acceptor.admitted(), self.acceptor.linked()
        limit_s = self.acceptor.limits.handshake_s
        for event in self._strangers.check(now, admitted, linked, limit_s):
            self._refused.append((b"", event))
