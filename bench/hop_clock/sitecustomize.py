"""Notes when large messages pass the sockets of processes whose PYTHONPATH has this folder.

Python imports this at its start. Of every message of at least HOP_LEAST bytes that a process sends
or has received, a record is added to the process's file in HOP_CLOCKS; `bench/hops.py` reads them.
In a chain these are hidden states.
"""

from __future__ import annotations

import os
import time
from typing import Any

import zmq

from bench.hops import RECORD

LEAST = int(os.environ["HOP_LEAST"])
_send: Any = zmq.Socket.send
_recv: Any = zmq.Socket.recv
_file = os.open(
    os.path.join(os.environ["HOP_CLOCKS"], str(os.getpid())),
    os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    0o600,
)


def _note(sends: bool, data: Any, at_ns: int) -> None:
    if len(data) >= LEAST:
        os.write(_file, RECORD.pack(at_ns, sends, len(data), bytes(data[:48])))


def _timed_send(socket: Any, data: Any, *rest: Any, **options: Any) -> Any:
    at_ns = time.monotonic_ns()
    done = _send(socket, data, *rest, **options)
    _note(True, data, at_ns)
    return done


def _timed_recv(socket: Any, *rest: Any, **options: Any) -> Any:
    data = _recv(socket, *rest, **options)
    _note(False, data, time.monotonic_ns())
    return data


zmq.Socket.send = _timed_send  # type: ignore[assignment, method-assign]
zmq.Socket.recv = _timed_recv  # type: ignore[assignment, method-assign]
