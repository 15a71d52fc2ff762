"""A TCP path between nodes and a head that records and harms what it carries."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Relay:
    """A TCP path between nodes and a head, in a thread: records, and harms what it is told to.

    `harm` gets what a node sent and gives what arrives; None ends the connection there.
    """

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").split(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        #: By connection, the oldest first: all bytes from the node.
        self.recorded: list[bytes] = []
        self.harm: Callable[[bytes], bytes | None] = lambda data: data
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="relay")

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._server:
            selector.register(self._server, selectors.EVENT_READ)
            self._pairs: dict[socket.socket, tuple[socket.socket, int]] = {}
            while not self._stop.is_set():
                for key, _ in selector.select(0.02):
                    if key.fileobj is self._server:
                        self._accept(selector)
                    elif key.fileobj in self._pairs:
                        self._carry(selector, key.fileobj)
            for each in self._pairs:
                each.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._server.accept()
        far = socket.create_connection(self._target)
        self.recorded.append(b"")
        self._pairs[near], self._pairs[far] = (far, len(self.recorded) - 1), (near, -1)
        selector.register(near, selectors.EVENT_READ)
        selector.register(far, selectors.EVENT_READ)

    def _carry(self, selector: selectors.BaseSelector, source: socket.socket) -> None:
        to, place = self._pairs[source]
        data: bytes | None = b""
        with contextlib.suppress(ConnectionError):
            data = source.recv(65536)
        if data and place >= 0:
            self.recorded[place] += data
            data = self.harm(data)
        if data:
            with contextlib.suppress(ConnectionError):
                to.sendall(data)
                return
        for each in (source, to):
            selector.unregister(each)
            del self._pairs[each]
            each.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
