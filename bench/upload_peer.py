"""A client that puts files at a set pace and has them sent to a node, a process of its own.

    {"do": "upload", "file_bytes": N, "files": N, "bytes_per_s": N, "seed": N}

puts new files one after the other, each named in a request as soon as it is on the head's disk, and
waits for the end of them all. A model of this version takes no files: its worker, which has them by
then, refuses the request, and that says that the file is on the node.

    {"do": "ask", "op": ..., ...}       one request, answered with how it ended and after how long

    python -m bench.upload_peer --api ipc:///... --model NAME
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import random
import time
from typing import Any

import msgpack
import zmq

from bench.lines import serve
from bus.messages.api import MARK, MAX_BLOB_PART_BYTES, encode_body

LIMIT_MS = 120_000
#: Parts that may be on their way; a client that sends more ahead gains nothing.
AHEAD = 16


class UploadPeer:
    """One connection to a head.

    Args:
        api: the head's address for clients.
        model: whose node gets the files.
    """

    def __init__(self, api: str, model: str) -> None:
        self._model = model
        self._numbers = itertools.count(1)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(api)
        #: By id, what is yet to end, and how those ended that did.
        self._open: set[bytes] = set()
        self._ends: dict[bytes, dict[str, Any]] = {}

    def upload(self, file_bytes: int, files: int, bytes_per_s: float, seed: int) -> dict[str, Any]:
        """Files to head and node; `bytes_per_s` 0 is as fast as they are taken."""
        start = time.monotonic()
        requests = []
        pace = _Pace(bytes_per_s)
        for number in range(files):
            data = random.Random(seed + number).randbytes(file_bytes)
            sha256 = self._put(data, pace)
            keys = {"model": self._model, "tokens": [1], "max_new": 1, "blobs": [sha256]}
            requests.append(self._send("generate", keys))
        put_s = time.monotonic() - start
        for request in requests:
            self._wait(request)
            error = self._ends.pop(request).get("error", {})
            if error.get("param") != "blobs" or error.get("code") != "invalid":
                raise RuntimeError(f"a file did not reach the node: {error}")
        seconds = time.monotonic() - start
        return {"bytes": files * file_bytes, "put_s": put_s, "seconds": seconds}

    def request(self, op: str, **keys: Any) -> dict[str, Any]:
        """One request; its events are passed over."""
        start = time.monotonic()
        request = self._send(op, {"model": self._model, **keys})
        self._wait(request)
        end = self._ends.pop(request)
        error = end.get("error") or {}
        return {
            "seconds": time.monotonic() - start,
            "kind": end["kind"],
            "code": error.get("code", ""),
            "session": end.get("session", ""),
        }

    def _put(self, data: bytes, pace: _Pace) -> bytes:
        sha256 = hashlib.sha256(data).digest()
        parts = []
        for start in range(0, len(data), MAX_BLOB_PART_BYTES):
            part = data[start : start + MAX_BLOB_PART_BYTES]
            pace.wait(len(part))
            keys = {"sha256": sha256, "length": len(data), "offset": start}
            parts.append(self._send("put_blob", keys, part))
            if len(parts) > AHEAD:
                self._wait(parts[-1 - AHEAD])
        self._wait(parts[-1])
        for request in parts:
            self._wait(request)
            end = self._ends.pop(request)
            if end["kind"] != "end":
                raise RuntimeError(f"a part was not taken: {end}")
        return sha256

    def _send(self, op: str, keys: dict[str, Any], *blobs: bytes) -> bytes:
        request = b"%d" % next(self._numbers)
        self._socket.send_multipart(
            [MARK, encode_body({"op": op, "id": request, **keys}), *blobs], copy=False
        )
        self._open.add(request)
        return request

    def _wait(self, request: bytes) -> None:
        while request in self._open:
            if not self._socket.poll(LIMIT_MS):
                raise TimeoutError(f"no reply within {LIMIT_MS} ms")
            reply = msgpack.unpackb(self._socket.recv_multipart()[1])
            if reply["kind"] != "event":
                self._open.discard(reply["id"])
                self._ends[reply["id"]] = reply


class _Pace:
    """So many bytes a second, evenly; 0 is no limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self._s_per_byte = 1 / bytes_per_s if bytes_per_s else 0.0
        self._next_s = time.monotonic()

    def wait(self, size: int) -> None:
        now = time.monotonic()
        if now < self._next_s:
            time.sleep(self._next_s - now)
        self._next_s = max(self._next_s, now - 0.05) + size * self._s_per_byte


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--api", required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    peer = UploadPeer(options.api, options.model)
    serve({}, {"upload": peer.upload, "ask": peer.request})


if __name__ == "__main__":
    main()
