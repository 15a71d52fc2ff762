"""A peer whose last words are ZMTP pings behind more than is read must not end our process.

libzmq 4.3.5 asserts there (`!_io_error`, its issue 4841) when its input had stopped for want of
room, which anybody who reaches the port could bring about.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
#: More than were taken at once before, and few enough to be read by libzmq together with the pings.
FRAMES = 40
ROUNDS = 20

LISTENER = """
import sys, zmq
from bus.transport.link_options import configure_router
router = zmq.Context.instance().socket(zmq.ROUTER)
configure_router(router)
print(router.bind_to_random_port("tcp://127.0.0.1"), flush=True)
for line in sys.stdin:
    # All that one peer sent is read after that peer has closed.
    while router.poll(200):
        router.recv_multipart()
    print("read", flush=True)
"""


def command(name: bytes, body: bytes) -> bytes:
    """A ZMTP command. Source: ZMTP 3.1 (ZeroMQ RFC 37)."""
    whole = bytes([len(name)]) + name + body
    return bytes([4, len(whole)]) + whole


READY = command(b"READY", b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER")
PING = command(b"PING", struct.pack(">H", 0))


@pytest.fixture
def listener() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_pings_behind_unread_frames_of_a_peer_that_closed(
    listener: subprocess.Popen[str],
) -> None:
    assert listener.stdin is not None
    assert listener.stdout is not None
    port = int(listener.stdout.readline())
    for _ in range(ROUNDS):
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.sendall(GREETING + READY)
            # Its own greeting and READY: frames count from there on.
            assert peer.recv(len(GREETING), socket.MSG_WAITALL)
            peer.sendall(b"\0\5hello" * FRAMES + PING * 3)
        print("go", file=listener.stdin, flush=True)
        assert listener.stdout.readline() == "read\n", f"it ended: {listener.wait()}"
