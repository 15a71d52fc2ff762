"""Real links over real sockets: strangers at a head, and addresses where none can be had."""

from __future__ import annotations

import socket as plain_socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from bus.errors import ConfigInvalid, PortInUse
from bus.transport import dealer, link_options
from bus.transport import strangers as strangers_module
from bus.transport.loop import Loop
from tests.harness.link_sides import NodeSide, Stage


@pytest.fixture(params=["ipc", "tcp"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(f"ipc://{tmp_path}/f.sock" if request.param == "ipc" else "tcp://127.0.0.1:0")
    yield made
    made.close()


def test_a_frame_over_the_limit_or_of_two_parts_comes_from_no_peer(stage: Stage) -> None:
    head = stage.head()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect(head.links.address)
        stranger.send_multipart([b"two", b"parts"])
        stranger.send(b"junk")
        stage.until(lambda: head.acceptor.ignored_frames == 1)
        stranger.send(bytes(link_options.MAX_FRAME_BYTES + 1))
        node = stage.node(head.links.address)
        stage.until(lambda: node.link.is_up)
        assert head.acceptor.ignored_frames == 1


def test_peers_that_speak_the_first_zmtp_do_no_harm(tmp_path: Path) -> None:
    stage = Stage("tcp://127.0.0.1:0")
    head = stage.head()
    host, port = head.links.address.removeprefix("tcp://").split(":")
    with plain_socket.create_connection((host, int(port))) as old:
        # ZMTP 1.0: an anonymous greeting, then one frame of one byte.
        old.sendall(b"\x01\x00" + b"\x02\x00x")
        stage.until(lambda: head.acceptor.ignored_frames == 1)
        node = stage.node(head.links.address)
        stage.until(lambda: node.link.is_up)
    stage.close()


def test_strangers_beyond_the_limit_are_cut_the_oldest_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers_module, "MAX_STRANGERS", 5)
    head = stage.head()
    node = stage.node(head.links.address)
    stage.until(lambda: node.link.is_up)
    family = plain_socket.AF_UNIX if stage.address.startswith("ipc") else plain_socket.AF_INET
    where: Any = head.links.address.removeprefix("ipc://")
    if family == plain_socket.AF_INET:
        host, port = head.links.address.removeprefix("tcp://").split(":")
        where = (host, int(port))
    strangers = [plain_socket.socket(family) for _ in range(8)]
    for count, stranger in enumerate(strangers, start=1):
        stranger.connect(where)
        stage.until(lambda count=count: head.links._table._accepted == 1 + count)  # type: ignore[misc]
    for stranger in strangers[:3]:
        stage.until(lambda stranger=stranger: _is_closed(stranger))  # type: ignore[misc]
    assert not any(_is_closed(stranger) for stranger in strangers[3:])
    assert node.link.is_up
    for stranger in strangers:
        stranger.close()


def test_a_stranger_s_endless_message_of_many_parts_is_cut_before_it_fills_memory() -> None:
    stage = Stage("tcp://127.0.0.1:0")
    head = stage.head()
    host, port = head.links.address.removeprefix("tcp://").split(":")
    with plain_socket.create_connection((host, int(port))) as stranger:
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
        stranger.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready)
        size = link_options.MAX_FRAME_BYTES // 2
        part = b"\x03" + size.to_bytes(8, "big") + bytes(size)
        stranger.setblocking(False)
        sent = 0

        def refused() -> bool:
            nonlocal sent
            try:
                sent += stranger.send(part)
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                return True
            return False

        stage.until(refused)
        assert sent < 64 * 1024 * 1024
        node = stage.node(head.links.address)
        stage.until(lambda: node.link.is_up)
    stage.close()


def _is_closed(connection: plain_socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_an_unreachable_head_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealer, "UNREACHABLE_S", 0.05)
    stage = Stage("")
    with plain_socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    node = stage.node(address)
    stage.until(lambda: node.codes() == ["unreachable"])
    (event,) = node.seen
    assert address in event.reason
    assert "check that it runs" in event.reason
    stage.close()


def test_a_second_head_on_the_port_is_refused_with_the_remedy(stage: Stage) -> None:
    head = stage.head()
    with pytest.raises(PortInUse, match=r"set fleet\.bind in head\.toml"):
        stage.head(head.links.address)


def test_no_address_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(ConfigInvalid, match="it looks like tcp://host:8454"):
        NodeSide(Loop(), "gpu-2:8454", "gpu-1")
