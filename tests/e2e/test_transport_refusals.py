"""Connections that make no link: cut in time whatever they say, given back by who is refused."""

from __future__ import annotations

import os
import select
import socket as plain_socket
from collections.abc import Callable, Iterator

import pytest

from bus.acceptor import Acceptor
from bus.endpoint import Endpoint
from bus.link import HandshakeRefused, LinkLimits, PeerInfo, Refusal
from bus.messages.link import NodeStatus
from bus.redial import Redial
from bus.transport import clock, link_options
from bus.transport import dealer as dealer_module
from bus.transport import strangers as strangers_module
from bus.transport.router import RouterLinks
from tests.harness.acceptor_fleet import hello_of
from tests.harness.link_identities import head, node, token
from tests.harness.link_sides import HeadSide, Stage
from tests.harness.strangers import GREETING, READY, Stranger, zmtp_frame

LIMIT_S = 0.5
LIMITS = LinkLimits(handshake_s=LIMIT_S, confirm_s=LIMIT_S / 2)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage("tcp://127.0.0.1:0")
    yield made
    made.close()


def good(number: int) -> bytes:
    return hello_of(node("gpu-9", boot=number + 1), b"%d" % number)


def bad(number: int) -> bytes:
    return hello_of(node(tokens=(token("other"),)), b"%d" % number)


@pytest.mark.parametrize("hello", [good, bad, lambda _: b"junk"], ids=["good", "bad", "junk"])
def test_who_keeps_talking_and_makes_no_link_is_cut_as_one_who_is_silent(
    stage: Stage, hello: Callable[[int], bytes]
) -> None:
    head_side = stage.head()
    head_side.acceptor.limits = LIMITS
    said = 0
    with Stranger(head_side.links.address) as stranger:
        stranger.greet()
        started = next_at = clock.now()

        def cut() -> bool:
            nonlocal said, next_at
            if clock.now() >= next_at:
                stranger.say(zmtp_frame(hello(said)))
                said, next_at = said + 1, next_at + LIMIT_S / 10
            return stranger.is_cut

        stage.until(cut)
        assert LIMIT_S * 0.9 <= clock.now() - started < LIMIT_S * 4
        assert said > 5
        reasons = [event.reason for _, event in head_side.seen if "cut off" in event.reason]
        assert reasons == [f"a peer connected and made no link for {LIMIT_S:g} s; it was cut off"]


def test_a_connection_whose_link_ended_has_its_time_anew(stage: Stage) -> None:
    head_side = stage.head()
    head_side.acceptor.limits = LIMITS
    linked = stage.node(head_side.links.address)
    stage.until(lambda: linked.link.is_up and head_side.address_of("gpu-1") is not None)
    address = head_side.address_of("gpu-1") or b""
    until = clock.now() + 3 * LIMIT_S
    while clock.now() < until:
        # More than a stranger may send.
        linked.link.send(NodeStatus(models=()))
        stage.loop.turn(0.01)
    head_side.links.close_link(address, "again")
    stage.until(lambda: linked.codes() == ["goodbye"])
    stage.until(lambda: linked.link.is_up)
    # On the same connection: nobody cut it.
    assert head_side.address_of("gpu-1") == address


class ClosedHead(HeadSide):
    """Takes nobody until it is told to."""

    def __init__(self, stage: Stage) -> None:
        self.closed = True
        self.acceptor = Acceptor(head(), entropy=os.urandom, admit=self._admit)
        self.links = RouterLinks(stage.address, self.acceptor)
        self.links.attach(stage.loop)
        self.seen = []
        stage.loop.on_turn(self._turn)

    def _admit(self, peer: PeerInfo) -> None:
        if self.closed:
            raise HandshakeRefused(Refusal.NOT_ENROLLED, f"node {peer.name} is not enrolled")


def test_who_waits_for_approval_holds_no_connection_and_comes_back_by_itself(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_s(_: Redial, code: str) -> float:
        return 1.5

    monkeypatch.setattr(Redial, "_wait", wait_s)
    head_side = ClosedHead(stage)
    waits = stage.node(head_side.links.address)
    for times in (1, 2):
        stage.until(lambda times=times: waits.codes() == ["not_enrolled"] * times)  # type: ignore[misc]
        refused_at = clock.now()
        stage.until(lambda: len(head_side.links._table) == 0)
        assert clock.now() - refused_at < 1.0
        assert not waits.link.connected
    assert waits.link._rejects == waits.link._endpoint.rejects
    head_side.closed = False
    stage.until(lambda: waits.link.is_up)
    assert waits.codes() == ["not_enrolled"] * 2
    head_side.links.close("test is over")


def test_a_crowd_from_one_address_takes_the_places_of_nobody_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers_module, "MAX_STRANGERS", 5)
    head_side = stage.head()
    host, port = head_side.links.address.removeprefix("tcp://").split(":")
    quiet = [Stranger(head_side.links.address, f"127.0.0.{n}") for n in (10, 11)]
    stage.until(lambda: head_side.links._table._accepted == 2)
    crowd = []
    for count in range(20):
        crowd.append(plain_socket.create_connection((host, int(port)), None, ("127.0.0.66", 0)))
        stage.until(lambda count=count: head_side.links._table._accepted == 3 + count)  # type: ignore[misc]
    stage.until(lambda: len(head_side.links._table) <= 5)
    assert not any(each.is_cut for each in quiet)
    for stranger in quiet:
        stranger.close()
    for each in crowd:
        each.close()


def test_a_linked_peer_s_endless_message_of_many_parts_is_cut(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzmq keeps the parts of a message until its last, which never comes."""
    monkeypatch.setattr(strangers_module, "MEASURE_LINKED_EVERY_S", 0.05)
    head_side = stage.head()
    with Stranger(head_side.links.address) as stranger:
        stranger.greet()
        peer = Endpoint(node("evil"), initiator=True, entropy=os.urandom)
        peer.connect(clock.now())
        heard = b""
        stranger.socket.setblocking(False)

        def linked() -> bool:
            nonlocal heard
            while (frame := peer.next_frame()) is not None:
                stranger.say(zmtp_frame(frame))
            try:
                heard += stranger.socket.recv(65536)
            except BlockingIOError:
                return head_side.address_of("evil") is not None
            # Short and long frames, after the ZMTP handshake's rest.
            at = heard.find(b"SFLF")
            if at >= 0:
                length = heard[at - 1] if heard[at - 2] == 0 else int.from_bytes(heard[at - 8 : at])
                if len(heard) >= at + length:
                    peer.receive(heard[at : at + length], clock.now())
                    heard = heard[at + length :]
            return head_side.address_of("evil") is not None

        stage.until(linked)
        size = link_options.MAX_FRAME_BYTES // 2
        part = b"\x03" + size.to_bytes(8, "big") + bytes(size)
        sent = 0

        def refused() -> bool:
            nonlocal sent
            try:
                while sent < 2**30:
                    sent += stranger.socket.send(part[sent % len(part) :])
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                return True
            return False

        stage.until(refused)
    assert 32 * 1024 * 1024 < sent < 1024 * 1024 * 1024
    stage.until(lambda: [down.code for down in head_side.downs()] == ["disconnected"])
    assert any(
        "make no frame" in event.reason for _, event in head_side.seen if hasattr(event, "reason")
    )


def test_an_endless_message_from_who_was_called_is_cut(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealer_module, "MEASURE_EVERY_S", 0.05)
    size = link_options.MAX_FRAME_BYTES // 2
    part = b"\x03" + size.to_bytes(8, "big") + bytes(size)
    greeting = GREETING + READY.replace(b"\x06DEALER", b"\x06ROUTER")
    with plain_socket.create_server(("127.0.0.1", 0)) as server:
        calls = stage.node(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        server.setblocking(False)
        stage.until(lambda: bool(select.select([server], [], [], 0)[0]))
        called, _ = server.accept()
        with called:
            called.setblocking(False)
            called.send(greeting)
            sent = 0

            def cut() -> bool:
                nonlocal sent
                try:
                    while sent < 2**30:
                        sent += called.send(part[sent % len(part) :])
                except BlockingIOError:
                    return False
                except (BrokenPipeError, ConnectionResetError):
                    return True
                return False

            stage.until(cut)
        assert 32 * 1024 * 1024 < sent < 1024 * 1024 * 1024
        stage.until(lambda: "protocol" in calls.codes())
