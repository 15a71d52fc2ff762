"""Members with the fleet token who open handshakes without end, or claim another node's key."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import cache

import pytest

from bus.address import network_of
from bus.address_slot import MAX_CONFIRMING_BYTES, MAX_HALF_OPEN, heaviest
from bus.crypto import KeyPair, SecretKey
from bus.endpoint import Endpoint
from bus.frames import PART_BYTES, FrameKind
from bus.link import HelloCounter, LinkUp, PeerRefused
from tests.harness.acceptor_fleet import Fleet, hello_of
from tests.harness.link_identities import entropy_from, key, node

ATTACKER = b"10.6.6.6"


@cache
def known(count: int) -> dict[bytes, tuple[int, int]]:
    return {key(f"n{n}").public: (1, 0) for n in range(count)}


def claiming(name: str, counter: int, boot: int = 3) -> bytes:
    """A Hello with the public key of a node and another secret: who has the token can make it."""
    counters = HelloCounter()
    counters._value = counter
    pair = KeyPair(SecretKey(b"\x07" * 32), key(name).public)
    forged = replace(node(name, boot=boot, static=pair), hello_counter=counters)
    return hello_of(forged, b"forged %s %d" % (name.encode(), counter))


def test_a_forged_hello_does_not_lock_the_real_node_out() -> None:
    fleet = Fleet(last_seen=known(1).get)
    for number in range(10):
        hello = claiming("n0", 2**60 + number)
        fleet.acceptor.receive(b"thief%d" % number, hello, fleet.now, peer_key=ATTACKER)
    fleet.join(b"real", node("n0"))
    assert fleet.up() == [b"real"]


def test_who_claims_a_linked_key_neither_links_nor_harms_its_link() -> None:
    fleet = Fleet()
    fleet.join(b"real", node("n0"))
    for number in range(60):
        fleet.now += 0.1
        hello = claiming("n0", 2**40 + number, boot=2**40)
        fleet.acceptor.receive(b"thief%d" % number, hello, fleet.now, peer_key=ATTACKER)
        fleet.acceptor.handle_timeout(fleet.now)
        fleet.settle()
    assert fleet.up() == [b"real"]
    assert [e for _, e in fleet.events if isinstance(e, LinkUp)] == [fleet.events[0][1]]


def test_a_flood_of_half_open_handshakes_takes_no_place_of_a_fleet_that_returns() -> None:
    """200 nodes come back while a member opens as many handshakes as it may."""
    fleet = Fleet(last_seen=known(200).get)
    for number in range(200):
        fleet.now += 0.002
        address = b"10.0.%d.1" % number
        peer = Endpoint(node(f"n{number}"), initiator=True, entropy=entropy_from(address))
        peer.connect(fleet.now)
        hello = peer.next_frame()
        assert hello is not None
        fleet.acceptor.receive(address, hello, fleet.now, peer_key=address)
        for each in (1, 2):
            thief = b"thief%d.%d" % (number, each)
            forged = claiming(f"n{number}", 2**50 + each)
            fleet.acceptor.receive(thief, forged, fleet.now, peer_key=ATTACKER)
        fleet.peers[address] = peer
    assert fleet.acceptor.half_open == 256
    # Their Confirms come only now, after all of the attacker's Hellos.
    fleet.settle()
    assert len(fleet.up()) == 200
    assert all(where.startswith(b"thief") for where, _ in fleet.codes(PeerRefused))


def test_handshakes_of_one_address_have_a_budget_whatever_keys_they_claim() -> None:
    fleet = Fleet(last_seen=known(1).get)
    for number in range(600):
        fleet.now += 0.001
        hello = claiming("n0", 2**50 + number)
        fleet.acceptor.receive(b"t%d" % number, hello, fleet.now, peer_key=ATTACKER)
    fleet.settle()
    computed = sum(bool(frames) and frames[0][5] == 2 for frames in fleet.answers.values())
    assert 256 <= computed <= 256 + 0.6 * 50 + 1
    fleet.join(b"real", node("n0"))
    assert fleet.up() == [b"real"]


def test_unknown_keys_have_a_budget_and_known_ones_do_not() -> None:
    fleet = Fleet(last_seen={key(f"n{n}").public: (1, 0) for n in range(60, 70)}.get)
    for n in [*range(50), *range(60, 70), *range(50, 60)]:
        hello = hello_of(node(f"n{n}"), b"%d" % n)
        fleet.acceptor.receive(b"%d" % n, hello, fleet.now, peer_key=ATTACKER)
    fleet.settle()
    refused = [(b"%d" % n, "too_many_handshakes") for n in range(50, 60)]
    # They count as failures of that address, so the last ones are not even looked at.
    assert fleet.codes(PeerRefused) == refused[:5]
    opened = {where for where, slot in fleet.acceptor._slots.items() if slot.half_open}
    assert {b"%d" % n for n in range(60, 70)} <= opened
    # A new node at another address is not kept waiting by them.
    fleet.acceptor.receive(b"new", hello_of(node("new"), b"w"), fleet.now, peer_key=b"10.0.0.1")
    slot = fleet.acceptor._slots.get(b"new")
    assert slot is not None
    assert slot.half_open is not None


def test_what_256_half_open_handshakes_hold() -> None:
    hellos = [hello_of(node(f"n{n}"), b"%d" % n) for n in range(300)]
    fleet = Fleet(last_seen=known(300).get)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for n, hello in enumerate(hellos):
        source = b"10.0.%d.1" % (n // 2)
        fleet.acceptor.receive(b"%d" % n, hello, fleet.now, peer_key=source)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert fleet.acceptor.half_open == MAX_HALF_OPEN == 256
    assert held < 5 * 1024 * 1024
    fleet.acceptor.handle_timeout(fleet.now + 5.0)
    fleet.settle()
    assert fleet.acceptor._slots == {}


def half_open(fleet: Fleet, address: bytes, source: bytes) -> Endpoint:
    """A peer with the fleet token whose HelloAck came, so that it can seal."""
    name = address.decode()
    peer = Endpoint(node(name), initiator=True, entropy=entropy_from(address))
    peer.connect(fleet.now)
    hello = peer.next_frame()
    assert hello is not None
    fleet.acceptor.receive(address, hello, fleet.now, peer_key=source)
    fleet.peers = {address: peer}
    fleet.deliver()
    assert peer.state == "confirming"
    peer._outbox.drop_messages()
    return peer


def test_confirms_that_never_end_are_bounded_and_an_honest_one_comes_through() -> None:
    fleet = Fleet(last_seen=known(1).get)
    attackers = [half_open(fleet, b"t%d" % n, ATTACKER) for n in range(20)]
    honest = half_open(fleet, b"honest", b"10.0.0.1")
    part = bytes(PART_BYTES)
    # Long ones, so that they come in parts; what is in them does not matter before the last.
    honest._outbox.put(FrameKind.CONFIRM, 0, bytes(5 * 1024 * 1024))
    for peer in attackers:
        peer._outbox.put(FrameKind.CONFIRM, 0, bytes(7 * 1024 * 1024))
    honest_frames = [frame for _ in range(39) if (frame := honest.next_frame())]
    for frame in honest_frames:
        fleet.acceptor.receive(b"honest", frame, fleet.now, peer_key=b"10.0.0.1")
    most = 0
    for _ in range(55):
        for n, peer in enumerate(attackers):
            if (frame := peer.next_frame()) is not None:
                fleet.acceptor.receive(b"t%d" % n, frame, fleet.now, peer_key=ATTACKER)
        most = max(most, heaviest(fleet.acceptor._slots)[0])
    assert 60 * 1024 * 1024 < most <= MAX_CONFIRMING_BYTES + len(part)
    assert fleet.acceptor._slots[b"honest"].half_open is not None
    fleet.events += fleet.acceptor.events()
    cut = {where for where, code in fleet.codes(PeerRefused) if code == "too_many_handshakes"}
    assert cut
    assert b"honest" not in cut


def test_a_confirm_of_more_than_8_mib_ends_its_handshake() -> None:
    fleet = Fleet(last_seen=known(1).get)
    peer = half_open(fleet, b"t0", ATTACKER)
    peer._outbox.put(FrameKind.CONFIRM, 0, bytes(9 * 1024 * 1024))
    for _ in range(70):
        if (frame := peer.next_frame()) is not None:
            fleet.acceptor.receive(b"t0", frame, fleet.now, peer_key=ATTACKER)
    fleet.events += fleet.acceptor.events()
    assert fleet.codes(PeerRefused) == [(b"t0", "decode")]
    assert fleet.acceptor.half_open == 0


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.9", "10.0.0.9"),
        ("::ffff:10.0.0.9", "10.0.0.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("/run/sf.sock", "/run/sf.sock"),
        ("", ""),
    ],
)
def test_callers_are_counted_by_their_network(host: str, network: str) -> None:
    assert network_of(host) == network
