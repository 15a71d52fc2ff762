"""The client API's sockets: order, slow and vanishing clients, addresses, dead heads."""

from __future__ import annotations

import os
import signal
import socket as plain_socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from bus.errors import NoHead, PortInUse, StartError
from bus.messages.api import MAX_FRAMES
from bus.transport import api_server, clock
from bus.transport.api_client import ApiSocket
from bus.transport.api_server import ApiServer
from bus.transport.loop import Loop


class Harness:
    """A server in a loop, with all it received and all clients that went."""

    def __init__(self, address: str) -> None:
        self.loop = Loop()
        self.server = ApiServer(address)
        self.received: list[tuple[bytes, list[bytes]]] = []
        self.gone: list[bytes] = []
        self.server.attach(self.loop, self._receive)
        self.loop.on_turn(lambda now: self.gone.extend(self.server.gone()))

    def _receive(self) -> None:
        self.received += self.server.receive()

    def until(self, condition: Callable[[], bool]) -> None:
        until = clock.now() + 30.0
        while not condition():
            assert clock.now() < until, "it never came true"
            self.loop.turn(0.1)

    def close(self) -> None:
        self.server.close()
        self.server.close()
        self.loop.close()


@pytest.fixture(params=["ipc", "tcp"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(f"ipc://{tmp_path}/api.sock" if request.param == "ipc" else "tcp://127.0.0.1:0")
    yield made
    made.close()
    assert [name for name in os.listdir(tmp_path) if name.endswith(".sock")] == []


def test_requests_and_replies_keep_their_frames_and_their_order(harness: Harness) -> None:
    with ApiSocket(harness.server.address) as client:
        assert client.connected
        for index in range(50):
            assert client.send([b"SF1", b"%d" % index, b"", b"blob"])
        harness.until(lambda: len(harness.received) == 50)
        (address,) = {found for found, _ in harness.received}
        assert [frames for _, frames in harness.received] == [
            [b"SF1", b"%d" % index, b"", b"blob"] for index in range(50)
        ]
        for index in range(50):
            assert harness.server.send(address, [b"SF1", b"reply %d" % index])
        for index in range(50):
            assert client.recv(20) == [b"SF1", b"reply %d" % index]
        assert client.recv(0) is None
        assert client.recv(0.01) is None
        assert not client.lost


def test_a_client_that_vanishes_is_named_and_no_other(harness: Harness) -> None:
    with ApiSocket(harness.server.address) as stays:
        goes = ApiSocket(harness.server.address)
        goes.send([b"SF1", b"goes"])
        harness.until(lambda: len(harness.received) == 1)
        stays.send([b"SF1", b"stays"])
        harness.until(lambda: len(harness.received) == 2)
        (gone, _), (staying, _) = harness.received
        goes.close()
        harness.until(lambda: harness.gone == [gone])
        assert not harness.server.send(gone, [b"SF1", b"to nobody"])
        assert harness.server.send(staying, [b"SF1", b"to somebody"])
        assert stays.recv(20) == [b"SF1", b"to somebody"]


def test_many_short_connections_each_end_once_with_descriptors_used_again(
    harness: Harness,
) -> None:
    for index in range(60):
        with ApiSocket(harness.server.address) as client:
            client.send([b"SF1", b"%d" % index])
            harness.until(lambda count=index + 1: len(harness.received) == count)  # type: ignore[misc]
            address = harness.received[-1][0]
            assert harness.server.send(address, [b"SF1", b"done"])
            assert client.recv(20) == [b"SF1", b"done"]
    everyone = {address for address, _ in harness.received}
    assert len(everyone) == 60
    harness.until(lambda: set(harness.gone) == everyone)
    assert len(harness.gone) == 60


def test_a_slow_client_loses_nothing_and_holds_up_nobody(harness: Harness) -> None:
    with ApiSocket(harness.server.address) as slow, ApiSocket(harness.server.address) as fast:
        slow.send([b"SF1", b"slow"])
        harness.until(lambda: len(harness.received) == 1)
        fast.send([b"SF1", b"fast"])
        harness.until(lambda: len(harness.received) == 2)
        (slow_address, _), (fast_address, _) = harness.received
        sent = 0
        while sent < 5_000:
            assert harness.server.send(slow_address, [b"SF1", b"%d" % sent, bytes(4_000)])
            sent += 1
        assert harness.server.backlog(slow_address) > 0
        assert harness.server.send(fast_address, [b"SF1", b"at once"])
        assert fast.recv(20) == [b"SF1", b"at once"]
        for index in range(sent):
            frames = slow.recv(0)
            while frames is None:
                harness.loop.turn(0.01)
                frames = slow.recv(0)
            assert frames[1] == b"%d" % index
        assert harness.server.backlog(slow_address) == 0
        assert harness.server.next_timeout() is None


def test_a_full_socket_is_tried_less_and_less_often_but_a_new_one_soon(harness: Harness) -> None:
    server = harness.server

    def fill(address: bytes) -> None:
        while not server.backlog(address):
            assert server.send(address, [b"SF1", bytes(100_000)])

    with ApiSocket(server.address) as one, ApiSocket(server.address) as other:
        for client in (one, other):
            client.send([b"SF1", b"hello"])
        harness.until(lambda: len(harness.received) == 2)
        first, second = (address for address, _ in harness.received)
        fill(first)
        waits = []
        for _ in range(12):
            now = server.next_timeout()
            assert now is not None
            server.handle_timeout(now)
            again = server.next_timeout()
            assert again is not None
            waits.append(again - now)
        assert waits[-1] == pytest.approx(api_server.MAX_RETRY_S)
        fill(second)
        soon = server.next_timeout()
        assert soon is not None
        assert soon - clock.now() <= api_server.RETRY_S


def test_the_backlog_of_a_client_that_reads_nothing_has_an_end(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "MAX_BACKLOG_BYTES", 1_000_000)
    with ApiSocket(harness.server.address) as client:
        client.send([b"SF1", b"never reads"])
        harness.until(lambda: len(harness.received) == 1)
        address = harness.received[0][0]
        taken = 0
        while harness.server.send(address, [b"SF1", bytes(100_000)]):
            taken += 1
            assert taken < 10_000
        assert harness.server.backlog(address) == 9
    harness.until(lambda: harness.gone == [address])
    assert harness.server.backlog(address) == 0


def test_of_too_many_frames_no_more_are_kept_than_to_refuse_them(harness: Harness) -> None:
    with ApiSocket(harness.server.address) as client:
        client.send([b"x"] * 1000)
        client.send([b"x"] * MAX_FRAMES)
        harness.until(lambda: len(harness.received) == 2)
        lengths = [len(frames) for _, frames in harness.received]
        assert lengths == [MAX_FRAMES + 1, MAX_FRAMES]


def test_a_frame_over_the_limit_cuts_its_client_only(harness: Harness) -> None:
    with ApiSocket(harness.server.address) as good, ApiSocket(harness.server.address) as bad:
        bad.send([b"SF1", bytes(api_server.MAX_FRAME_BYTES + 1)])
        harness.until(lambda: bad.lost)
        good.send([b"SF1", bytes(8 * 1024 * 1024)])
        harness.until(lambda: len(harness.received) == 1)


def test_a_second_server_is_refused_and_the_first_goes_on(harness: Harness) -> None:
    with pytest.raises(PortInUse, match=r"api\.socket in head\.toml") as raised:
        ApiServer(harness.server.address)
    if harness.server.address.startswith("ipc"):
        assert f"process {os.getpid()} already serves clients" in raised.value.message
    with ApiSocket(harness.server.address) as client:
        client.send([b"SF1", b"still here"])
        harness.until(lambda: len(harness.received) == 1)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("tcp://198.51.100.1:0", "no address of this machine"),
        ("tcp://127.0.0.1:nonsense", "write it as tcp://HOST:PORT"),
        ("ipc:///" + "x" * 120, "choose a shorter state folder"),
    ],
)
def test_an_address_that_can_not_be_used_says_what_to_do(address: str, text: str) -> None:
    with pytest.raises(StartError, match=text):
        ApiServer(address)


def test_no_head_is_known_at_once(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(NoHead, match="does not exist; start it with `sfctl up`"):
        ApiSocket(f"ipc://{tmp_path}/api.sock")
    stale = plain_socket.socket(plain_socket.AF_UNIX)
    stale.bind(f"{tmp_path}/stale.sock")
    stale.close()
    with pytest.raises(NoHead, match="no head is running at"):
        ApiSocket(f"ipc://{tmp_path}/stale.sock")
    with plain_socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(NoHead, match="no head is running at"):
        ApiSocket(f"tcp://127.0.0.1:{port}")
    with pytest.raises(NoHead, match="it looks like ipc:///path"):
        ApiSocket("host:8455")
    assert time.monotonic() - begin < 3.0


def test_something_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with plain_socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NoHead, match=r"answered within 0.2 s"):
            ApiSocket(address, timeout_s=0.2)


HEAD = """
import sys
from bus.transport.api_server import ApiServer
from bus.transport.loop import Loop
server, loop = ApiServer(sys.argv[1]), Loop()
def serve():
    for client, frames in server.receive():
        server.send(client, [b"SF1", b"first"])
        server.send(client, [b"SF1", b"second"])
server.attach(loop, serve)
print(server.address, flush=True)
loop.run()
"""


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_a_killed_head_is_noticed_at_once_and_its_words_are_read(tmp_path: Path, kind: str) -> None:
    address = f"ipc://{tmp_path}/api.sock" if kind == "ipc" else "tcp://127.0.0.1:0"
    head = subprocess.Popen([sys.executable, "-c", HEAD, address], stdout=subprocess.PIPE)
    assert head.stdout is not None
    bound = head.stdout.readline().decode().strip()
    with ApiSocket(bound) as client:
        client.send([b"SF1", b"hello"])
        assert client.recv(20) == [b"SF1", b"first"]
        # The second reply lies unread while the head dies.
        assert client.sources[0].poll(20_000, zmq.POLLIN)
        head.send_signal(signal.SIGKILL)
        head.wait()
        begin = time.monotonic()
        assert client.recv(None) == [b"SF1", b"second"]
        assert client.recv(20) is None
        assert time.monotonic() - begin < 5.0
        assert client.lost
        assert not client.connected
        assert not client.send([b"SF1", b"anybody?"])
    head.stdout.close()
    # A dead head's socket file and lock stop nobody.
    if kind == "ipc":
        server = ApiServer(address)
        server.close()
