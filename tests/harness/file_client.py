"""An API client that speaks frames, for operations on files."""

from __future__ import annotations

import itertools
from typing import Any

import msgpack
import zmq

from bus.closing import Closing
from bus.messages.api import MARK, MAX_BLOB_PART_BYTES, encode_body
from tests.harness.blob_rig import blob_of

LIMIT_MS = 60_000
#: Parts that are sent ahead of their replies.
AHEAD = 16


class FileClient(Closing):
    """One DEALER; its requests are answered one after the other."""

    def __init__(self, address: str) -> None:
        self._numbers = itertools.count(1)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)

    def close(self) -> None:
        self._socket.close()

    def put(self, data: bytes) -> dict[str, Any]:
        """Put a file; gives the reply to its last part."""
        blob = blob_of(data)
        waiting = 0
        reply: dict[str, Any] = {}
        for start in range(0, max(len(data), 1), MAX_BLOB_PART_BYTES):
            keys = {"sha256": blob.sha256, "length": blob.length, "offset": start}
            self._send("put_blob", keys, data[start : start + MAX_BLOB_PART_BYTES])
            waiting += 1
            if waiting > AHEAD:
                reply = self._receive()
                waiting -= 1
        for _ in range(waiting):
            reply = self._receive()
        return reply

    def ask(self, op: str, **keys: Any) -> dict[str, Any]:
        """The `end` or `error` of a request; its events are passed over."""
        return self.ask_with(op, keys)

    def ask_with(self, op: str, keys: dict[str, Any], *blobs: bytes) -> dict[str, Any]:
        """The same with frames after the body."""
        self._send(op, keys, *blobs)
        while True:
            reply = self._receive()
            if reply["kind"] != "event":
                return reply

    def _send(self, op: str, keys: dict[str, Any], *blobs: bytes) -> None:
        body = {"op": op, "id": str(next(self._numbers)).encode(), **keys}
        self._socket.send_multipart([MARK, encode_body(body), *blobs])

    def _receive(self) -> dict[str, Any]:
        if not self._socket.poll(LIMIT_MS):
            raise TimeoutError(f"no reply within {LIMIT_MS} ms")
        frames = self._socket.recv_multipart()
        found: dict[str, Any] = msgpack.unpackb(frames[1])
        return found
