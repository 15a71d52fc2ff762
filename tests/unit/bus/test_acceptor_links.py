"""Many peers at one ROUTER: their links, replacement, refused frames, ends."""

from __future__ import annotations

from bus.acceptor import REFUSED_RETRY_S, Acceptor
from bus.frames import FrameKind, pack_header, parse_frame
from bus.link import (
    LinkDown,
    LinkUp,
    MessageReceived,
)
from bus.messages.link import Heartbeat, NodeStatus
from tests.harness.acceptor_fleet import Fleet
from tests.harness.link_identities import entropy_from, head, node


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
    fleet.now += peer.limits.stale_s
    peer.handle_timeout(fleet.now)
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


def test_the_same_process_may_shake_hands_again_on_its_connection() -> None:
    fleet = Fleet()
    peer = fleet.join(b"a", node())
    for _ in range(5):
        peer.connect(fleet.now)
        fleet.settle()
        assert fleet.up() == [b"a"]
        assert peer.state == "up"
    assert [code for _, code in fleet.codes(LinkDown)] == ["replaced"] * 5


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
