"""The client's socket to a head: connected or an error at once, and a dead head is no silence."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import zmq

from bus.closing import Closing
from bus.errors import NoHead, TimedOut
from bus.transport.addresses import allow_ipv6, ipc_path, shared_context
from bus.transport.api_server import MAX_FRAME_BYTES
from bus.transport.link_options import reap_dead_connections
from bus.transport.monitor import HANDSHAKE_FAILURES, Happening, SocketMonitor

#: How long a head may take to accept the connection, and a full queue to take a request.
CONNECT_TIMEOUT_S = 5.0
SEND_TIMEOUT_S = 10.0

_START_IT = "start it with `sfctl up`, or give its address with --api or SUPERFLUID_API"


class ApiSocket(Closing):
    """One connection to a head, which is not made again: open a new one after `lost`.

    Owns a DEALER and its monitor; used by one thread at a time. A process that was forked since
    can not use it, only close it.

    Args:
        address: `ipc:///path` or `tcp://host:port`.
        timeout_s: how long the connection may take.

    Raises:
        NoHead: no head answers there, or this process is a fork of the one that connected; the
            text says in what way. Everything but `close` raises the latter.
    """

    def __init__(self, address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        path = ipc_path(address)
        if path is not None and not path.exists():
            raise NoHead(f"no head is running: {path} does not exist; {_START_IT}")
        self.address = address
        self._connected = False
        self._lost = False
        self._pid = os.getpid()
        self._dealer = shared_context().socket(zmq.DEALER)
        _configure(self._dealer)
        allow_ipv6(self._dealer, address)
        self._monitor = SocketMonitor(self._dealer)
        self._poller = zmq.Poller()
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._monitor.readable, zmq.POLLIN)
        try:
            self._connect(timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def connected(self) -> bool:
        """True while the connection stands."""
        self._watch()
        return self._connected and not self._lost

    @property
    def lost(self) -> bool:
        """True once the connection ended; what the head sent before may still be read."""
        self._watch()
        return self._lost

    def send(self, frames: Sequence[bytes], timeout_s: float = SEND_TIMEOUT_S) -> bool:
        """Send one request, `[mark, body, blob...]`.

        Returns:
            False when the connection ended, see `lost`; nothing was sent then.

        Raises:
            TimedOut: the head took nothing for so long.
        """
        until = time.monotonic() + timeout_s
        while True:
            if self.lost:
                return False
            try:
                self._dealer.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise TimedOut(
                        f"the head at {self.address} took no request for {timeout_s:g} s; see "
                        "`sfctl status` on its machine"
                    ) from None
                # Short, so that a lost connection is noticed meanwhile.
                self._dealer.poll(min(50, max(1, round(left_s * 1000))), zmq.POLLOUT)
            else:
                return True

    def recv(self, timeout_s: float | None) -> list[bytes] | None:
        """The next message of the head.

        Args:
            timeout_s: seconds to wait; 0 looks without waiting, None waits for ever.

        Returns:
            None when none came in time, and at once when the connection ended (see `lost`) and
            everything that came before its end was read.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # The monitor first: what came before its end is in the queue by then.
            lost = self.lost
            try:
                return self._dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                pass
            left_s = None if until is None else until - time.monotonic()
            if lost or (left_s is not None and left_s <= 0):
                return None
            self._poller.poll(None if left_s is None else max(1, round(left_s * 1000)))

    @property
    def sources(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """What an outer loop polls; when either is readable, call `recv(0)` until None."""
        return self._dealer, self._monitor.readable

    def close(self) -> None:
        """Close at once. May be called again."""
        if os.getpid() != self._pid:
            return  # The I/O thread is in the other process, whose connection goes on.
        self._monitor.close()
        self._dealer.close()

    def _connect(self, timeout_s: float) -> None:
        try:
            self._dealer.connect(self.address)
        except zmq.ZMQError as error:
            raise NoHead(
                f"{self.address} is no address of a head ({error}); it looks like "
                "ipc:///path/api.sock"
            ) from error
        until = time.monotonic() + timeout_s
        while not self._connected:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise NoHead(
                    f"nothing at {self.address} answered within {timeout_s:g} s; check the "
                    "address, the network and firewalls"
                )
            self._monitor.readable.poll(max(1, round(left_s * 1000)))
            if self.lost:
                raise NoHead(f"no head is running at {self.address}; {_START_IT}")

    def _watch(self) -> None:
        if os.getpid() != self._pid:
            raise NoHead(
                "this process was forked from the one that connected, and can not use its "
                "connection; connect again here"
            )
        for event in self._monitor.drain():
            if event.happening is Happening.HANDSHAKE_SUCCEEDED:
                self._connected = True
            elif event.happening in HANDSHAKE_FAILURES or event.happening in (
                Happening.DISCONNECTED,
                Happening.CLOSED,
            ):
                self._lost = True


def _configure(dealer: zmq.Socket[bytes]) -> None:
    # Practically never, in ms: the caller connects anew, and knows which answers are open. Without
    # a second try at all (-1), and with IMMEDIATE, libzmq drops what lies unread when the
    # connection ends: the head's last words. Nothing is sent before the connection stands anyway.
    dealer.setsockopt(zmq.RECONNECT_IVL, 3_600_000)
    # The head's messages obey the same limit as ours.
    dealer.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    # What is unsent at close is given up; waiting could take for ever.
    dealer.setsockopt(zmq.LINGER, 0)
    reap_dead_connections(dealer)
