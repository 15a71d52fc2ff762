"""Real links over real sockets: order, slow readers, killed peers, restarts, strangers."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket as plain_socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from bus.acceptor import Acceptor
from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.errors import ConfigInvalid, PortInUse
from bus.ids import CommandId, Epoch, NodeIdentity, PackedIds, SessionId
from bus.keys import FleetToken, new_token, parse_token
from bus.link import LinkDown, LinkIdentity, LinkLimits, LinkUp, MessageReceived, PeerRefused
from bus.messages.link import AppendContent, HeadConfirm, NodeConfirm
from bus.transport import clock, dealer, link_options
from bus.transport import strangers as strangers_module
from bus.transport.dealer import DealerLink
from bus.transport.loop import Loop
from bus.transport.router import RouterLinks

HEAD_KEY = KeyPair.from_secret(bytes(range(32)))


def _token() -> FleetToken:
    text = new_token(HEAD_KEY.public, lambda count: bytes(range(count)))
    return parse_token(text, source="keys/fleet.token")


def head_identity(boot: int = 5) -> LinkIdentity:
    return LinkIdentity(
        role="head",
        name="head-1",
        static=HEAD_KEY,
        tokens=(_token(),),
        incarnation=boot,
        confirm=lambda: HeadConfirm(identity="head-1", boot=boot, software="0.1.0"),
    )


def node_identity(name: str, token: FleetToken | None = None) -> LinkIdentity:
    return LinkIdentity(
        role="node",
        name=name,
        static=KeyPair.from_secret(hashlib.sha256(name.encode()).digest()),
        tokens=(token or _token(),),
        incarnation=3,
        confirm=lambda: NodeConfirm(identity=NodeIdentity(name), incarnation=3, software="0.1.0"),
    )


class HeadSide:
    """A listening head in a loop."""

    def __init__(self, loop: Loop, address: str, boot: int = 5) -> None:
        self.acceptor = Acceptor(head_identity(boot), entropy=os.urandom)
        self.links = RouterLinks(address, self.acceptor)
        self.links.attach(loop)
        self.seen: list[tuple[bytes, Any]] = []
        loop.on_turn(self._turn)

    def _turn(self, now: float) -> None:
        self.seen += self.links.events()
        self.links.flush(now)

    def address_of(self, name: str) -> bytes | None:
        for address, endpoint in self.acceptor.links():
            if endpoint.peer and endpoint.peer.name == name:
                return address
        return None

    def messages(self, address: bytes) -> list[Any]:
        return [
            event.message
            for found, event in self.seen
            if found == address and isinstance(event, MessageReceived)
        ]

    def downs(self) -> list[LinkDown]:
        return [event for _, event in self.seen if isinstance(event, LinkDown)]


class NodeSide:
    """A joining node in a loop of its own or shared."""

    def __init__(
        self, loop: Loop, address: str, name: str, token: FleetToken | None = None
    ) -> None:
        identity = node_identity(name, token)
        self.link = DealerLink(
            address,
            lambda: Endpoint(identity, initiator=True, entropy=os.urandom),
            rng=random.Random(name),
        )
        self.link.attach(loop)
        self.seen: list[Any] = []
        loop.on_turn(self._turn)

    def _turn(self, now: float) -> None:
        self.seen += self.link.events()
        self.link.flush(now)

    def messages(self) -> list[Any]:
        return [event.message for event in self.seen if isinstance(event, MessageReceived)]

    def codes(self) -> list[str]:
        return [e.code for e in self.seen if isinstance(e, LinkDown | PeerRefused)]


class Stage:
    """Loops, and all sides to close at the end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.loop = Loop()
        self._closers: list[Callable[[], None]] = [self.loop.close]

    def head(self, address: str | None = None, boot: int = 5) -> HeadSide:
        made = HeadSide(self.loop, address or self.address, boot)
        self._closers.append(lambda: made.links.close("test is over"))
        return made

    def head_again(self, address: str, boot: int) -> HeadSide:
        """A head where one was closed just now; libzmq lets a tcp port go a moment later."""
        for _ in range(1000):
            try:
                return self.head(address, boot)
            except PortInUse:
                self.loop.turn(0.01)
        raise AssertionError(f"{address} was never let go")

    def node(
        self,
        address: str,
        name: str = "gpu-1",
        loop: Loop | None = None,
        token: FleetToken | None = None,
    ) -> NodeSide:
        made = NodeSide(loop or self.loop, address, name, token)
        self._closers.append(lambda: made.link.close("test is over"))
        return made

    def own_loop(self) -> Loop:
        made = Loop()
        self._closers.append(made.close)
        return made

    def until(self, condition: Callable[[], bool], *others: Loop) -> None:
        until = clock.now() + 30.0
        while not condition():
            assert clock.now() < until, f"it never came true: {vars(self)}"
            self.loop.turn(0.0 if others else 0.1)
            for loop in others:
                loop.turn(0.005)

    def close(self) -> None:
        for closer in reversed(self._closers):
            closer()


@pytest.fixture(params=["ipc", "tcp"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(f"ipc://{tmp_path}/f.sock" if request.param == "ipc" else "tcp://127.0.0.1:0")
    yield made
    made.close()


def _job(number: int, padding: int = 0) -> AppendContent:
    return AppendContent(
        command=CommandId(number),
        session=SessionId("s"),
        epoch=Epoch(1),
        base_tokens=0,
        base_digest=b"",
        ids=PackedIds(bytes(padding)),
    )


def test_two_nodes_and_a_thousand_messages_each_way_in_order(stage: Stage) -> None:
    head = stage.head()
    nodes = [stage.node(head.links.address, name) for name in ("gpu-1", "gpu-2")]
    stage.until(lambda: all(node.link.is_up for node in nodes))
    stage.until(lambda: len(list(head.acceptor.links())) == 2)
    for node, name in zip(nodes, ("gpu-1", "gpu-2"), strict=True):
        address = head.address_of(name)
        assert address is not None
        for number in range(1000):
            assert head.links.send(address, _job(number))
            assert node.link.send(_job(number))
    stage.until(lambda: all(len(node.messages()) >= 1000 for node in nodes))
    addresses = [head.address_of(name) or b"" for name in ("gpu-1", "gpu-2")]
    stage.until(lambda: all(len(head.messages(address)) >= 1000 for address in addresses))
    for node, address in zip(nodes, addresses, strict=True):
        assert [message.command for message in node.messages()] == list(range(1000))
        assert [message.command for message in head.messages(address)] == list(range(1000))
    assert head.downs() == []


def test_a_slow_reader_loses_nothing_and_holds_up_nobody(stage: Stage) -> None:
    head = stage.head()
    own = stage.own_loop()
    slow = stage.node(head.links.address, "slow", loop=own)
    fast = stage.node(head.links.address, "fast")
    stage.until(lambda: slow.link.is_up and fast.link.is_up, own)
    stage.until(lambda: len(list(head.acceptor.links())) == 2, own)
    slow_address, fast_address = head.address_of("slow"), head.address_of("fast")
    assert slow_address is not None
    assert fast_address is not None
    for number in range(400):
        assert head.links.send(slow_address, _job(number, padding=50_000))
    # `own` is not turned: the slow node reads nothing meanwhile.
    for number in range(200):
        assert head.links.send(fast_address, _job(number))
    stage.until(lambda: len(fast.messages()) == 200)
    link = head.acceptor.endpoint(slow_address)
    assert link is not None
    assert link.queued_bytes > 1_000_000
    stage.until(lambda: len(slow.messages()) == 400, own)
    assert [message.command for message in slow.messages()] == list(range(400))
    assert head.downs() == []


def test_a_goodbye_arrives_before_the_end_of_its_connection(stage: Stage) -> None:
    head = stage.head()
    node = stage.node(head.links.address)
    stage.until(lambda: node.link.is_up and head.address_of("gpu-1") is not None)
    node.link.close("the agent was stopped")
    stage.until(lambda: bool(head.downs()))
    (down,) = head.downs()
    assert (down.code, down.by_peer) == ("goodbye", True)
    assert "the agent was stopped" in down.reason


NODE = """
import sys
sys.path[:0] = sys.argv[3:]
from test_transport_links import Loop, NodeSide
loop = Loop()
node = NodeSide(loop, sys.argv[1], sys.argv[2])
loop.on_turn(lambda now: print("up", flush=True) if node.link.is_up else None)
loop.run()
"""


def test_a_killed_peer_is_noticed_at_once(stage: Stage) -> None:
    head = stage.head()
    folder, root = str(Path(__file__).parent), str(Path(__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, "-c", NODE, head.links.address, "gpu-9", folder, root],
        stdout=subprocess.DEVNULL,
    )
    stage.until(lambda: head.address_of("gpu-9") is not None)
    child.send_signal(signal.SIGKILL)
    child.wait()
    killed_at = clock.now()
    stage.until(lambda: bool(head.downs()))
    assert head.downs()[0].code == "disconnected"
    # Far below the silence limit (30 s), which would have found it otherwise.
    assert clock.now() - killed_at < 5.0


def test_a_node_links_again_after_its_head_was_started_anew(stage: Stage) -> None:
    head = stage.head()
    address = head.links.address
    node = stage.node(address)
    stage.until(lambda: node.link.is_up)
    head.links.close("stopped")
    stage.until(lambda: not node.link.is_up)
    again = stage.head_again(address, boot=6)
    stage.until(lambda: node.link.is_up and again.address_of("gpu-1") is not None)
    ups = [event for event in node.seen if isinstance(event, LinkUp)]
    assert [up.peer.incarnation for up in ups] == [5, 6]
    # libzmq may drop the Goodbye when it is unread at the connection's end.
    assert node.codes() in (["goodbye"], ["disconnected"])
    at = again.address_of("gpu-1")
    assert at is not None
    again.links.send(at, _job(1))
    stage.until(lambda: len(node.messages()) == 1)


def test_a_node_that_reads_in_time_sees_why_its_head_went(stage: Stage) -> None:
    head = stage.head()
    node = stage.node(head.links.address)
    stage.until(lambda: node.link.is_up and head.address_of("gpu-1") is not None)
    head.acceptor.close("upgrade", clock.now())
    stage.until(lambda: node.codes() == ["goodbye"])
    assert "upgrade" in node.seen[-1].reason


def test_a_link_closed_on_purpose_is_made_again_on_the_same_connection(stage: Stage) -> None:
    head = stage.head()
    node = stage.node(head.links.address)
    stage.until(lambda: node.link.is_up and head.address_of("gpu-1") is not None)
    address = head.address_of("gpu-1")
    assert address is not None
    head.links.close_link(address, "revoked")
    stage.until(lambda: node.codes() == ["goodbye"])
    stage.until(lambda: node.link.is_up and head.address_of("gpu-1") == address)


def test_the_dialing_side_ends_a_link_and_makes_another(stage: Stage) -> None:
    head = stage.head()
    node = stage.node(head.links.address)
    stage.until(lambda: node.link.is_up and head.address_of("gpu-1") is not None)
    node.link.end_link("drained")
    stage.until(lambda: [down.code for down in head.downs()] == ["goodbye"])
    assert node.codes() == ["closed"]
    stage.until(lambda: node.link.is_up and head.address_of("gpu-1") is not None)


def test_a_cut_connection_ends_its_link_and_no_other(stage: Stage) -> None:
    head = stage.head()
    first, second = (stage.node(head.links.address, name) for name in ("gpu-1", "gpu-2"))
    stage.until(lambda: first.link.is_up and second.link.is_up)
    address = head.address_of("gpu-1")
    assert address is not None
    assert head.links.cut(address)
    stage.until(lambda: bool(head.downs()))
    stage.until(lambda: first.codes() == ["disconnected"])
    assert second.codes() == []
    assert len(head.downs()) == 1
    assert not head.links.cut(address)


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


def test_silence_ends_a_link_whose_connection_stands(stage: Stage) -> None:
    head = stage.head()
    own = stage.own_loop()
    limits = LinkLimits(silence_s=0.3, heartbeat_s=0.1)
    head.acceptor.limits = limits
    node = stage.node(head.links.address, loop=own)
    stage.until(lambda: node.link.is_up, own)
    stage.until(lambda: head.address_of("gpu-1") is not None, own)
    # Nobody turns the node's loop any more; its I/O thread still answers ZMTP's heartbeats.
    stage.until(lambda: bool(head.downs()))
    assert head.downs()[0].code == "silent"
