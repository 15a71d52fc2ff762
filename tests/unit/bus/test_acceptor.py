"""Many peers at one ROUTER: limits before authentication, replacement, conflicts, Stale."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bus.acceptor import MAX_HALF_OPEN, REFUSED_RETRY_S, Acceptor
from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.errors import WireError
from bus.frames import FrameKind, pack_header, parse_frame
from bus.ids import NodeIdentity
from bus.keys import FleetToken, new_token, parse_token
from bus.link import (
    HandshakeRefused,
    LinkDown,
    LinkIdentity,
    LinkUp,
    MessageReceived,
    PeerInfo,
    PeerRefused,
    Refusal,
)
from bus.messages.link import HeadConfirm, Heartbeat, NodeConfirm, NodeStatus
from bus.rate_limit import KeyedBuckets, TokenBucket

HEAD_KEY = KeyPair.from_secret(bytes(range(32)))


def entropy_from(seed: bytes) -> Callable[[int], bytes]:
    state = [0]

    def entropy(count: int) -> bytes:
        state[0] += 1
        return hashlib.shake_256(seed + state[0].to_bytes(8, "big")).digest(count)

    return entropy


def token(label: str = "current") -> FleetToken:
    text = new_token(HEAD_KEY.public, entropy_from(label.encode()))
    return parse_token(text, source=f"keys/{label}")


def key(name: str) -> KeyPair:
    return KeyPair.from_secret(hashlib.sha256(name.encode()).digest())


def head(**changes: Any) -> LinkIdentity:
    name, boot = changes.get("name", "head-1"), changes.get("incarnation", 5)
    made = LinkIdentity(
        role="head",
        name=name,
        static=HEAD_KEY,
        tokens=(token(),),
        incarnation=boot,
        confirm=lambda: HeadConfirm(identity=name, boot=boot, software="0.1.0"),
    )
    return replace(made, **changes)


def node(name: str = "gpu-2", boot: int = 3, **changes: Any) -> LinkIdentity:
    made = LinkIdentity(
        role="node",
        name=name,
        static=key(name),
        tokens=(token(),),
        incarnation=boot,
        confirm=lambda: NodeConfirm(
            identity=NodeIdentity(name), incarnation=boot, software="0.1.0"
        ),
    )
    return replace(made, **changes)


class Fleet:
    """One acceptor and the endpoints that connected to it, by return address."""

    def __init__(self, identity: LinkIdentity | None = None, **options: Any) -> None:
        self.now = 100.0
        self.acceptor = Acceptor(identity or head(), entropy=entropy_from(b"head"), **options)
        self.peers: dict[bytes, Endpoint] = {}
        self.events: list[tuple[bytes, Any]] = []
        self.answers: dict[bytes, list[bytes]] = {}

    def join(self, address: bytes, identity: LinkIdentity) -> Endpoint:
        peer = Endpoint(identity, initiator=True, entropy=entropy_from(address))
        self.peers[address] = peer
        peer.connect(self.now)
        self.settle()
        return peer

    def settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for address, peer in self.peers.items():
                while (frame := peer.next_frame(self.now)) is not None:
                    self.acceptor.receive(address, frame, self.now)
                    moved = True
            moved = self.deliver() or moved
        self.events += self.acceptor.events()

    def deliver(self) -> bool:
        moved = False
        while frames := self.acceptor.frames_to_send(self.now):
            for address, frame in frames:
                moved = True
                self.answers.setdefault(address, []).append(frame)
                if address in self.peers:
                    self.peers[address].receive(frame, self.now)
        return moved

    def codes(self, kind: type[LinkDown] | type[PeerRefused]) -> list[tuple[bytes, str]]:
        return [(address, e.code) for address, e in self.events if isinstance(e, kind)]

    def up(self) -> list[bytes]:
        return sorted(address for address, _ in self.acceptor.links())


def hello_of(identity: LinkIdentity, seed: bytes) -> bytes:
    stranger = Endpoint(identity, initiator=True, entropy=entropy_from(seed))
    stranger.connect(0.0)
    frame = stranger.next_frame()
    assert frame is not None
    return frame


def test_many_nodes_link_and_messages_carry_their_address() -> None:
    fleet = Fleet()
    for n in range(5):
        fleet.join(b"%d" % n, node(f"gpu-{n}"))
    assert fleet.up() == [b"0", b"1", b"2", b"3", b"4"]
    ups = [(a, e.peer.name) for a, e in fleet.events if isinstance(e, LinkUp)]
    assert ups == [(b"%d" % n, f"gpu-{n}") for n in range(5)]
    fleet.peers[b"3"].send(NodeStatus(models=()))
    fleet.settle()
    address, event = fleet.events[-1]
    assert address == b"3"
    assert event == MessageReceived(NodeStatus(models=()))
    link = fleet.acceptor.endpoint(b"1")
    assert link is not None
    link.send(Heartbeat(loop_lag_ms=1))
    fleet.settle()
    assert MessageReceived(Heartbeat(loop_lag_ms=1)) in fleet.peers[b"1"].events()


def test_a_frame_of_an_unknown_link_is_answered_with_stale() -> None:
    fleet = Fleet()
    peer = fleet.join(b"a", node())
    fleet.acceptor = Acceptor(head(), entropy=entropy_from(b"restarted"))
    peer.send(NodeStatus(models=()))
    peer.events()
    fleet.settle()
    (down,) = peer.events()
    assert isinstance(down, LinkDown)
    assert down.code == "stale"
    peer.connect(fleet.now)
    fleet.settle()
    assert fleet.up() == [b"a"]


def test_the_same_frame_from_another_address_belongs_to_no_link() -> None:
    fleet = Fleet()
    peer = fleet.join(b"a", node())
    peer.send(NodeStatus(models=()))
    frame = peer.next_frame()
    assert frame is not None
    fleet.acceptor.receive(b"thief", frame, fleet.now)
    fleet.settle()
    assert parse_frame(fleet.answers[b"thief"][0]).kind is FrameKind.STALE
    assert not any(isinstance(e, MessageReceived) for _, e in fleet.events)


def test_a_newer_incarnation_replaces_the_old_link_after_its_confirm() -> None:
    fleet = Fleet()
    old = fleet.join(b"old", node(boot=3))
    old.events()
    new = Endpoint(node(boot=4), initiator=True, entropy=entropy_from(b"new"))
    new.connect(fleet.now)
    hello = new.next_frame()
    assert hello is not None
    fleet.acceptor.receive(b"new", hello, fleet.now)
    fleet.settle()
    assert fleet.up() == [b"old"]
    fleet.peers[b"new"] = new
    for frame in fleet.answers[b"new"]:
        new.receive(frame, fleet.now)
    fleet.settle()
    assert fleet.up() == [b"new"]
    kinds = [(a, type(e)) for a, e in fleet.events]
    assert kinds == [(b"old", LinkUp), (b"old", LinkDown), (b"new", LinkUp)]
    (down,) = old.events()
    assert isinstance(down, LinkDown)
    assert (down.code, down.by_peer) == ("replaced", True)


def test_the_same_process_may_shake_hands_again_on_its_connection() -> None:
    fleet = Fleet()
    peer = fleet.join(b"a", node())
    for _ in range(5):
        peer.connect(fleet.now)
        fleet.settle()
        assert fleet.up() == [b"a"]
        assert peer.state == "up"
    assert [code for _, code in fleet.codes(LinkDown)] == ["replaced"] * 5


def test_another_key_with_the_same_identity_is_refused() -> None:
    fleet = Fleet()
    fleet.join(b"a", node())
    thief = fleet.join(b"b", node(static=key("thief")))
    assert fleet.up() == [b"a"]
    assert fleet.codes(PeerRefused) == [(b"b", "identity_in_use")]
    (refused,) = thief.events()
    assert isinstance(refused, PeerRefused)
    assert refused.code == "identity_in_use"
    assert refused.by_peer


def test_two_keys_that_race_for_an_identity_end_with_the_first() -> None:
    fleet = Fleet()
    pair = {b"a": node(), b"b": node(static=key("thief"))}
    for address, identity in pair.items():
        peer = Endpoint(identity, initiator=True, entropy=entropy_from(address))
        peer.connect(fleet.now)
        hello = peer.next_frame()
        assert hello is not None
        fleet.acceptor.receive(address, hello, fleet.now)
        fleet.peers[address] = peer
    assert fleet.acceptor.half_open == 2
    fleet.settle()
    assert fleet.up() == [b"a"]
    assert fleet.codes(PeerRefused) == [(b"b", "identity_in_use")]
    assert sum(isinstance(e, LinkUp) for _, e in fleet.events) == 1


def test_two_processes_that_share_a_key_do_not_replace_each_other_for_ever() -> None:
    fleet = Fleet()
    for n in range(6):
        fleet.now += 1.0
        fleet.join(b"%d" % n, node(boot=n + 1))
    assert fleet.up() == [b"3"]
    refused = [e for _, e in fleet.events if isinstance(e, PeerRefused)]
    assert [e.code for e in refused] == ["identity_in_use"] * 2
    assert "two processes share its state folder" in refused[0].reason
    fleet.now += 61.0
    fleet.join(b"later", node(boot=9))
    assert fleet.up() == [b"later"]


def test_a_node_serves_one_head() -> None:
    other_key = KeyPair.from_secret(b"\x05" * 32)
    other_token = parse_token(new_token(other_key.public, entropy_from(b"o")), source="keys/other")
    fleet = Fleet(node(tokens=(token(), other_token)))
    fleet.join(b"1", head())
    fleet.join(b"2", head(name="head-2", static=other_key, tokens=(other_token,)))
    assert fleet.up() == [b"1"]
    assert fleet.codes(PeerRefused) == [(b"2", "node_taken")]


def test_at_most_64_are_half_open_and_the_oldest_is_cut() -> None:
    fleet = Fleet()
    linked = fleet.join(b"linked", node("linked"))
    for n in range(MAX_HALF_OPEN + 2):
        fleet.now += 0.1
        hello = hello_of(node(f"n{n}"), b"%d" % n)
        fleet.acceptor.receive(b"half-%d" % n, hello, fleet.now)
        assert fleet.acceptor.half_open <= MAX_HALF_OPEN
    fleet.settle()
    assert fleet.codes(PeerRefused) == [
        (b"half-0", "too_many_handshakes"),
        (b"half-1", "too_many_handshakes"),
    ]
    assert linked.state == "up"
    assert fleet.up() == [b"linked"]


def test_a_half_open_handshake_ends_after_five_seconds() -> None:
    fleet = Fleet()
    fleet.acceptor.receive(b"a", hello_of(node(), b"x"), fleet.now)
    assert fleet.acceptor.next_timeout() == fleet.now + 5.0
    fleet.acceptor.handle_timeout(fleet.now + 5.0)
    fleet.settle()
    assert fleet.codes(PeerRefused) == [(b"a", "handshake_timeout")]
    assert fleet.acceptor.half_open == 0
    assert fleet.acceptor.next_timeout() is None


def test_an_unverified_hello_holds_nothing() -> None:
    fleet = Fleet()
    for n in range(200):
        fleet.acceptor.receive(b"%d" % n, hello_of(node(tokens=(token("x"),)), b"%d" % n), 100.0)
    assert fleet.acceptor.half_open == 0
    assert fleet.acceptor._slots == {}


def test_failed_hellos_are_limited_by_address_and_good_ones_are_not() -> None:
    fleet = Fleet()
    for n in range(30):
        bad = hello_of(node(tokens=(token("x"),)), b"%d" % n)
        fleet.acceptor.receive(b"%d" % n, bad, fleet.now, peer_key=b"10.0.0.9")
    fleet.settle()
    assert fleet.codes(PeerRefused) == [(b"%d" % n, "token_refused") for n in range(5)]
    assert fleet.acceptor.ignored_frames == 25
    good = hello_of(node(), b"good")
    fleet.acceptor.receive(b"other", good, fleet.now, peer_key=b"10.0.0.10")
    assert fleet.acceptor.half_open == 1
    fleet.now += 1.0
    fleet.acceptor.receive(b"back", hello_of(node("n"), b"n"), fleet.now, peer_key=b"10.0.0.9")
    assert fleet.acceptor.half_open == 2


def test_unknown_keys_have_a_budget_and_known_ones_do_not() -> None:
    known = {key(f"n{n}").public: (1, 0) for n in range(50, 60)}
    fleet = Fleet(last_seen=known.get)
    for n in range(60):
        fleet.acceptor.receive(b"%d" % n, hello_of(node(f"n{n}"), b"%d" % n), fleet.now)
    assert fleet.acceptor.half_open == 60
    fleet.acceptor.receive(b"late", hello_of(node("late"), b"late"), fleet.now)
    fleet.settle()
    assert fleet.codes(PeerRefused) == [(b"late", "too_many_handshakes")]


def test_hellos_seen_before_a_restart_are_refused() -> None:
    stored = {key("gpu-2").public: (3, 7)}
    fleet = Fleet(last_seen=stored.get)
    fleet.join(b"a", node(boot=3))
    assert fleet.codes(PeerRefused) == [(b"a", "hello_not_newer")]
    fleet.join(b"b", node(boot=4))
    assert fleet.up() == [b"b"]


def test_the_owner_may_refuse_a_peer() -> None:
    def closed(peer: PeerInfo) -> None:
        raise HandshakeRefused(
            Refusal.NOT_ENROLLED, f"node {peer.name} is not enrolled; run: sfctl node approve"
        )

    fleet = Fleet(admit=closed)
    peer = fleet.join(b"a", node())
    assert fleet.codes(PeerRefused) == [(b"a", "not_enrolled")]
    (refused,) = peer.events()
    assert isinstance(refused, PeerRefused)
    assert "approve it on the head" in refused.reason


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"junk",
        pack_header(FrameKind.HELLO, 1),
        pack_header(FrameKind.HELLO, 1) + bytes(2000),
        pack_header(FrameKind.HELLO_ACK, 1) + bytes(80),
        pack_header(FrameKind.STALE, 1),
        pack_header(FrameKind.REJECT, 1) + b"\x01\x01\x01",
    ],
)
def test_what_strangers_send_holds_nothing(frame: bytes) -> None:
    fleet = Fleet()
    fleet.acceptor.receive(b"a", frame, fleet.now)
    fleet.settle()
    assert fleet.acceptor._slots == {}
    assert len(fleet.answers.get(b"a", [])) <= 1


def test_a_doubled_hello_is_answered_once() -> None:
    fleet = Fleet()
    hello = hello_of(node(), b"x")
    fleet.acceptor.receive(b"a", hello, fleet.now)
    fleet.acceptor.receive(b"a", hello, fleet.now)
    fleet.settle()
    assert [parse_frame(f).kind for f in fleet.answers[b"a"]] == [FrameKind.HELLO_ACK]
    assert fleet.events == []
    fleet.acceptor.receive(b"b", hello, fleet.now)
    fleet.settle()
    assert fleet.codes(PeerRefused) == [(b"b", "hello_not_newer")]


def test_a_refused_frame_is_kept_for_its_address_and_tried_again_after_5_ms() -> None:
    fleet = Fleet()
    fleet.join(b"a", node("a"))
    fleet.join(b"b", node("b"))
    for _, link in fleet.acceptor.links():
        link.send(Heartbeat())
    first = dict(fleet.acceptor.frames_to_send(fleet.now))
    assert set(first) == {b"a", b"b"}
    fleet.acceptor.frame_refused(b"a", fleet.now)
    link_b = fleet.acceptor.endpoint(b"b")
    assert link_b is not None
    link_b.send(Heartbeat())
    assert [a for a, _ in fleet.acceptor.frames_to_send(fleet.now)] == [b"b"]
    assert fleet.acceptor.frames_to_send(fleet.now) == []
    due = fleet.acceptor.next_timeout()
    assert due == fleet.now + REFUSED_RETRY_S
    fleet.acceptor.handle_timeout(due)
    assert fleet.acceptor.frames_to_send(due) == [(b"a", first[b"a"])]


def test_a_refused_answer_is_not_kept() -> None:
    fleet = Fleet()
    fleet.join(b"a", node())
    link = fleet.acceptor.endpoint(b"a")
    assert link is not None
    link.send(Heartbeat())
    assert len(fleet.acceptor.frames_to_send(fleet.now)) == 1
    fleet.acceptor.receive(b"a", pack_header(FrameKind.DATA, 1) + bytes(16), fleet.now)
    ((_, stale),) = fleet.acceptor.frames_to_send(fleet.now)
    assert parse_frame(stale).kind is FrameKind.STALE
    fleet.acceptor.frame_refused(b"a", fleet.now)
    assert fleet.acceptor.frames_to_send(fleet.now + 1.0) == []


def test_a_closed_connection_ends_its_link_at_once() -> None:
    fleet = Fleet()
    fleet.join(b"a", node())
    fleet.acceptor.disconnected(b"a", "connection reset", fleet.now)
    fleet.settle()
    assert fleet.codes(LinkDown) == [(b"a", "disconnected")]
    assert fleet.up() == []
    fleet.acceptor.disconnected(b"a", "again", fleet.now)
    fleet.settle()
    assert len(fleet.codes(LinkDown)) == 1


def test_close_says_goodbye_to_everybody() -> None:
    fleet = Fleet()
    peers = [fleet.join(b"%d" % n, node(f"gpu-{n}")) for n in range(3)]
    fleet.acceptor.close("the head is going down", fleet.now)
    fleet.settle()
    assert fleet.up() == []
    for peer in peers:
        down = peer.events()[-1]
        assert isinstance(down, LinkDown)
        assert down.code == "goodbye"
    assert fleet.acceptor._slots == {}


def test_a_gap_seen_by_the_acceptor_tells_the_peer() -> None:
    fleet = Fleet()
    peer = fleet.join(b"a", node())
    peer.send(NodeStatus(models=()))
    assert peer.next_frame() is not None  # lost
    peer.send(NodeStatus(models=()))
    fleet.settle()
    assert fleet.codes(LinkDown) == [(b"a", "gap")]
    assert [e.code for e in peer.events() if isinstance(e, LinkDown)] == ["gap"]
    peer.connect(fleet.now)
    fleet.settle()
    assert fleet.up() == [b"a"]


def test_token_buckets() -> None:
    bucket = TokenBucket(rate=2.0, burst=3.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(0.4)
    assert bucket.take(0.5)
    assert [bucket.take(99.0) for _ in range(4)] == [True, True, True, False]
    keyed = KeyedBuckets(rate=1.0, burst=1.0, most=2)
    assert keyed.bucket("a").take(0.0)
    assert not keyed.bucket("a").take(0.0)
    keyed.bucket("b")
    keyed.bucket("c")
    assert keyed.bucket("a").take(0.0)
    assert issubclass(HandshakeRefused, WireError)
