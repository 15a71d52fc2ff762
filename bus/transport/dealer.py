"""The connecting end of a link: one DEALER that drives an `Endpoint`, and a new one after each end.

    unreachable --connected--> Hello ... up --LinkDown--> wait --> Hello with a fresh endpoint
         ^------------------- connection ends -----------------'

libzmq makes the connection again by itself, and this end says Hello when it stands; the waits
after a link's end grow and are drawn at random, so that a thousand nodes do not come back at once.
A connection that went silent or carried what does not verify is given up for a new one: libzmq
alone would keep it for its own 30 s, and after bytes that are no ZMTP it gives up for ever. Who is
refused gives the connection back until it tries again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import zmq

from bus.backoff import Backoff
from bus.endpoint import Endpoint
from bus.errors import ConfigInvalid
from bus.link import LinkDown, LinkEvent, LinkUp, PeerInfo, PeerRefused
from bus.transport import clock
from bus.transport.addresses import allow_ipv6, shared_context
from bus.transport.cutting import peer_of
from bus.transport.link_options import (
    GOODBYE_LINGER_MS,
    RECEIVE_FRAMES,
    RETRY_S,
    configure_dealer,
)
from bus.transport.loop import Loop
from bus.transport.monitor import HANDSHAKE_FAILURES, ConnectionEvent, Happening, SocketMonitor
from bus.transport.reading import ReadBudget
from bus.transport.unread import UnreadBytes

#: How often it is looked whether what comes in comes out.
MEASURE_EVERY_S = 1.0
#: Without a connection for so long, a person is told; and again each time it has lasted as long.
UNREACHABLE_S = 5.0
UNREACHABLE_AGAIN_S = 60.0
#: Frames that a connection may leave behind when it ends.
MAX_LAST_FRAMES = 16 * RECEIVE_FRAMES
#: libzmq takes a connection again and says so at once, but never after bytes that are no ZMTP.
ABANDONED_S = 1.0
CONNECTING = frozenset({Happening.CONNECT_DELAYED, Happening.CONNECT_RETRIED, Happening.CONNECTED})
#: Who was refused and waits longer than this holds no connection meanwhile: the peer would take it
#: for a stranger's, and 64 of those is all that it keeps.
RESTS_FROM_S = 1.0
#: Ends of links and handshakes after which their connection is not used again.
BROKEN_CODES = frozenset({"silent", "gap", "auth", "decode", "handshake_timeout"})


class DealerLink:
    """Owns the DEALER, its monitor and the present endpoint.

    Drive it with `attach(loop)`; in each turn take `events()`, send, and `flush(now)` last.

    Args:
        connect_address: `tcp://host:port` or `ipc:///path`.
        make_endpoint: gives an initiator that was not connected yet.
        label: names the peer in sentences.
        rng: draws the waits.

    Raises:
        ConfigInvalid: it is no address.
    """

    def __init__(
        self,
        connect_address: str,
        make_endpoint: Callable[[], Endpoint],
        *,
        label: str = "the head",
        rng: random.Random | None = None,
        now: Callable[[], float] = clock.now,
    ) -> None:
        self.address = connect_address
        self.label = f"{label} at {connect_address}"
        self._make_endpoint = make_endpoint
        self._rng = rng or random.Random()
        self._now = now
        self._endpoint = make_endpoint()
        self._events: list[LinkEvent] = []
        self._busy = False
        self._connected = False
        self._backoff = Backoff(self._rng, self._endpoint.limits.handshake_s)
        #: When to say Hello; None: a handshake or a link is under way, or there is no connection.
        self._hello_at: float | None = None
        #: No Hello before this.
        self._not_before = 0.0
        self._retry_at: float | None = None
        self._unreachable_at: float | None = now() + UNREACHABLE_S
        #: When to give the present connection up for a new one: in a later turn than the peer was
        #: told why, or when libzmq does nothing for one.
        self._reconnect_at: float | None = None
        #: While no connection is wanted, when one will be.
        self._connect_at: float | None = None
        #: What came over the present connection; measured from time to time.
        self._unread: UnreadBytes | None = None
        self._measure_at: float | None = None
        #: Refusals in a row, of endpoints before the present one.
        self._rejects = 0
        self._loop: Loop | None = None
        self._dealer = shared_context().socket(zmq.DEALER)
        configure_dealer(self._dealer, self._rng)
        allow_ipv6(self._dealer, connect_address)
        self._monitor = SocketMonitor(self._dealer)
        try:
            self._dealer.connect(connect_address)
        except zmq.ZMQError as error:
            self._monitor.close()
            self._dealer.close()
            raise ConfigInvalid(
                f"{connect_address} is no address to connect to ({error}); it looks like "
                "tcp://host:8454"
            ) from error

    @property
    def connected(self) -> bool:
        """A connection stands; a link needs a handshake besides."""
        return self._connected

    @property
    def is_up(self) -> bool:
        """A link is up."""
        return self._endpoint.state == "up"

    @property
    def peer(self) -> PeerInfo | None:
        """The peer of the present handshake or link."""
        return self._endpoint.peer

    def attach(self, loop: Loop) -> None:
        """Let a loop watch the sockets and fire the link's timers."""
        self._loop = loop
        loop.add_reader(self._monitor.readable, self.pump)
        loop.add_reader(self._dealer, self.pump)
        loop.add_timer_source(self.next_timeout, self.handle_timeout)

    def events(self) -> list[LinkEvent]:
        """What happened since the last call, in order."""
        self._collect()
        events, self._events = self._events, []
        return events

    def send(self, message: Any) -> bool:
        """Queue a message; False when no link is up (nothing is queued then).

        Raises:
            TooLarge: it is longer than any message may be.
        """
        return self._endpoint.send(message)

    def set_busy(self, busy: bool) -> None:
        """Heartbeats every second while a generation is live."""
        self._busy = busy
        self._endpoint.set_busy(busy)

    def pump(self) -> None:
        """Take in connection events and frames."""
        for event in self._monitor.drain():
            self._on_connection(event)
        budget = ReadBudget(self._now)
        while (length := self._read_one()) is not None:
            if not budget.spend(length):
                if self._loop is not None:
                    self._loop.end_reading()
                break

    def flush(self, now: float) -> None:
        """Hand frames to the socket until there are none, or it takes none."""
        self._retry_at = None
        if not self._connected:
            return
        while (frame := self._endpoint.next_frame(now)) is not None:
            try:
                self._dealer.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                self._endpoint.frame_refused()
                self._retry_at = now + RETRY_S
                return

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due."""
        times = [self._retry_at, self._unreachable_at, self._endpoint.next_timeout()]
        times += [self._hello_at, self._reconnect_at, self._connect_at, self._measure_at]
        return min((at for at in times if at is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """Say Hello, retry, beat and report what is due; `flush` follows at the turn's end."""
        if self._reconnect_at is not None and self._reconnect_at <= now:
            self._give_up_connection(now)
        if self._connect_at is not None and self._connect_at <= now:
            self._make_connection(now)
        if self._measure_at is not None and self._measure_at <= now:
            self._measure(now)
        if self._retry_at is not None and self._retry_at <= now:
            self.flush(now)
        if self._unreachable_at is not None and self._unreachable_at <= now:
            self._unreachable_at = now + UNREACHABLE_AGAIN_S
            self._events.append(
                PeerRefused(
                    "unreachable",
                    f"can not reach {self.label}; check that it runs, the address, and firewalls",
                )
            )
        due = self._endpoint.next_timeout()
        if due is not None and due <= now:
            self._endpoint.handle_timeout(now)
        self._collect()
        if self._hello_at is not None and self._hello_at <= now:
            self._say_hello(now)

    def end_link(self, reason: str) -> None:
        """End the present link with a Goodbye; it is made again after a wait."""
        self._endpoint.close(reason, self._now())
        self._collect()

    def close(self, reason: str) -> None:
        """End the link with a Goodbye and close. May be called again."""
        if self._dealer.closed:
            return
        now = self._now()
        self._endpoint.close(reason, now)
        self.flush(now)
        if self._loop is not None:
            self._loop.remove_reader(self._dealer)
            self._loop.remove_reader(self._monitor.readable)
            self._loop.remove_timer_source(self.handle_timeout)
        self._monitor.close()
        self._dealer.close(GOODBYE_LINGER_MS)
        self._connected = False
        self._hello_at = self._retry_at = self._unreachable_at = None
        self._reconnect_at = self._connect_at = self._measure_at = None

    # --- inside -------------------------------------------------------------------------------

    def _on_connection(self, event: ConnectionEvent) -> None:
        now = self._now()
        if self._connect_at is not None:
            return  # Of a connection that was given up.
        if event.happening in CONNECTING:
            self._reconnect_at = None
        elif event.happening in (Happening.DISCONNECTED, *HANDSHAKE_FAILURES):
            self._reconnect_at = now + ABANDONED_S
        if event.happening is Happening.CONNECTED and (peer := peer_of(event.value)):
            self._unread = UnreadBytes(event.value, peer, now)
            self._measure_at = now + MEASURE_EVERY_S
        if event.happening is Happening.HANDSHAKE_SUCCEEDED:
            self._connected = True
            self._unreachable_at = None
            self._hello_at = max(now, self._not_before)
        elif event.happening is Happening.DISCONNECTED:
            # Its last frames come before its end; a new connection sends nothing unasked. When we
            # are late libzmq has dropped them (IMMEDIATE), and a Goodbye is a plain disconnect.
            for _ in range(MAX_LAST_FRAMES):
                if self._read_one() is None:
                    break
            self._lose_connection(now)
        elif event.happening in HANDSHAKE_FAILURES:
            text = f"{self.label} closed the connection or is no superfluid; check the address"
            self._events.append(PeerRefused("connection_closed", text))

    def _give_up_connection(self, now: float) -> None:
        """What was queued for it goes nowhere; a new one is made when there is a use for it."""
        self._reconnect_at = None
        if self.is_up:
            return
        self._endpoint.close("its connection is given up", now)
        self._connected = False
        self._unread = self._measure_at = None
        self._hello_at = self._retry_at = self._unreachable_at = None
        self._dealer.disconnect(self.address)
        self._connect_at = max(now, self._not_before)

    def _make_connection(self, now: float) -> None:
        self._connect_at = None
        self._unreachable_at = now + UNREACHABLE_S
        self._dealer.connect(self.address)

    def _measure(self, now: float) -> None:
        """End a connection whose peer fills our memory with a message that never ends."""
        self._measure_at = now + MEASURE_EVERY_S
        unread = self._unread
        if unread is not None and unread.too_many(unread.received(), now) and unread.cut():
            text = f"{self.label} sent too much that makes no frame; its connection was cut"
            self._events.append(PeerRefused("protocol", text))

    def _lose_connection(self, now: float) -> None:
        self._connected = False
        self._unread = self._measure_at = None
        self._hello_at = self._retry_at = None
        self._unreachable_at = now + UNREACHABLE_S
        was_up = self.is_up
        self._endpoint.disconnected(f"{self.label} ended, or the network between did", now)
        self._collect()
        if not was_up:
            self._not_before = max(self._not_before, self._backoff.ended(now))

    def _read_one(self) -> int | None:
        """Read a frame; gives its length in bytes, None when there is none."""
        try:
            data = self._dealer.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        length, whole = len(data), True
        if self._unread is not None:
            self._unread.read(length)
        while self._dealer.getsockopt(zmq.RCVMORE):
            # Link-F has one part per frame; more of them come from somebody else.
            length += len(self._dealer.recv(zmq.NOBLOCK))
            whole = False
        if whole:
            self._endpoint.receive(data, self._now())
        return length

    def _collect(self) -> None:
        for event in self._endpoint.events():
            self._events.append(event)
            if isinstance(event, LinkUp):
                self._rejects = 0
                self._backoff.up(self._now())
            elif isinstance(event, LinkDown):
                self._not_before = self._backoff.ended(self._now(), event.code)
                if self._connected:
                    self._hello_at = self._not_before
            elif isinstance(event, PeerRefused):
                self._rest()
            if isinstance(event, LinkDown | PeerRefused) and event.code in BROKEN_CODES:
                self._reconnect_at = self._now() if self._connected else self._reconnect_at

    def _rest(self) -> None:
        """After a refusal: hold no connection for a long wait."""
        retry_at, now = self._endpoint.retry_at, self._now()
        if retry_at is not None and retry_at - now > RESTS_FROM_S:
            self._not_before, self._rejects = retry_at, self._endpoint.rejects
            self._reconnect_at = now if self._connected else self._reconnect_at

    def _say_hello(self, now: float) -> None:
        self._hello_at = None
        self._collect()
        self._endpoint = self._make_endpoint()
        self._endpoint.set_busy(self._busy)
        self._endpoint.connect(now, self._rejects)
