"""Who may link at one ROUTER: conflicts of identity, and limits before authentication."""

from __future__ import annotations

import pytest

from bus import address_slot
from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.errors import WireError
from bus.frames import FrameKind, pack_header, parse_frame
from bus.keys import new_token, parse_token
from bus.link import (
    HandshakeRefused,
    LinkUp,
    PeerInfo,
    PeerRefused,
    Refusal,
)
from bus.rate_limit import KeyedBuckets, TokenBucket
from tests.harness.acceptor_fleet import Fleet, hello_of
from tests.harness.link_identities import entropy_from, head, key, node, token


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


def test_a_node_serves_one_head() -> None:
    other_key = KeyPair.from_secret(b"\x05" * 32)
    other_token = parse_token(new_token(other_key.public, entropy_from(b"o")), source="keys/other")
    fleet = Fleet(node(tokens=(token(), other_token)))
    fleet.join(b"1", head())
    fleet.join(b"2", head(name="head-2", static=other_key, tokens=(other_token,)))
    assert fleet.up() == [b"1"]
    assert fleet.codes(PeerRefused) == [(b"2", "node_taken")]


def test_half_open_handshakes_are_bounded_and_the_oldest_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet()
    linked = fleet.join(b"linked", node("linked"))
    monkeypatch.setattr(address_slot, "MAX_HALF_OPEN", 64)
    for n in range(64 + 2):
        fleet.now += 0.1
        hello = hello_of(node(f"n{n}"), b"%d" % n)
        fleet.acceptor.receive(b"half-%d" % n, hello, fleet.now)
        assert fleet.acceptor.half_open <= 64
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


def test_many_offenders_share_a_budget_and_a_host_that_did_not_fail_is_looked_at() -> None:
    fleet = Fleet()
    bad = [hello_of(node(tokens=(token("x"),)), b"%d" % n) for n in range(50)]
    tried = 0
    for turn in range(200):
        fleet.now += 0.01
        for host in range(50):
            fleet.acceptor.receive(b"%d" % host, bad[host], fleet.now, peer_key=b"10.0.1.%d" % host)
        tried = 10_000 // 200 * (turn + 1) - fleet.acceptor.ignored_frames
    # 100 at once and 100/s for 2 s, and one of each host in 2 s.
    assert 250 <= tried <= 100 + 200 + 2 * 50
    fleet.acceptor.receive(b"good", hello_of(node(), b"g"), fleet.now, peer_key=b"10.0.2.1")
    assert fleet.acceptor.half_open == 1


def test_what_a_refused_hello_costs() -> None:
    """Nothing is computed for one over its limit, and no Diffie-Hellman for a bad one."""
    fleet = Fleet()
    entropy_used = fleet.acceptor._entropy
    calls: list[int] = []

    def counted(count: int) -> bytes:
        calls.append(count)
        return entropy_used(count)

    fleet.acceptor._entropy = counted
    good = hello_of(node(), b"x")
    for n in range(40):
        fleet.acceptor.receive(b"%d" % n, good[:-1] + b"\0", fleet.now, peer_key=b"10.0.0.9")
    assert calls == []
    assert fleet.acceptor.ignored_frames == 35


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
