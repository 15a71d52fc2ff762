"""Two endpoints back to back: how a link comes up, and why it does not."""

from __future__ import annotations

import itertools

import pytest

from bus.crypto import KeyPair
from bus.errors import WireError
from bus.frames import FrameKind, parse_frame
from bus.ids import Epoch, NodeIdentity, SessionId
from bus.link import LinkUp, PeerRefused
from bus.messages.link import HeadConfirm, Heartbeat, NodeConfirm
from bus.messages.parts import LeaseRef
from tests.harness.endpoint_rig import Rig, refusals
from tests.harness.link_identities import head, node, token


@pytest.mark.parametrize("head_connects", [True, False])
def test_both_sides_come_up_with_the_others_confirm(head_connects: bool) -> None:
    rig = Rig(head(), node()) if head_connects else Rig(node(), head())
    rig.connect()
    assert rig.states() == ("up", "up")
    (a_up,), (b_up,) = rig.a_events, rig.b_events
    assert isinstance(a_up, LinkUp)
    assert isinstance(b_up, LinkUp)
    node_side, head_side = (b_up, a_up) if head_connects else (a_up, b_up)
    assert isinstance(head_side.confirm, NodeConfirm)
    assert isinstance(node_side.confirm, HeadConfirm)
    assert head_side.peer.name == "gpu-2"
    assert node_side.peer.name == "head-1"
    assert rig.a.link_id == rig.b.link_id


def test_a_confirm_of_many_parts_is_joined() -> None:
    held = tuple(LeaseRef(session=SessionId("s" * 60), epoch=Epoch(n)) for n in range(5000))

    def confirm() -> NodeConfirm:
        return NodeConfirm(
            identity=NodeIdentity("gpu-2"), incarnation=3, software="0.1.0", held=held
        )

    rig = Rig(node(confirm=confirm), head()).connect()
    assert rig.b_events[0].confirm.held == held
    assert sum(parse_frame(f).kind is FrameKind.CONFIRM for f in rig.seen) > 2


def test_nothing_is_sent_before_the_link_is_up() -> None:
    rig = Rig()
    assert not rig.a.send(Heartbeat())
    rig.a.connect(rig.now)
    assert not rig.a.send(Heartbeat())
    hello = rig.a.next_frame()
    assert hello is not None
    assert parse_frame(hello).kind is FrameKind.HELLO
    assert rig.a.next_frame() is None


def test_a_confirm_of_somebody_else_is_refused() -> None:
    other = NodeConfirm(identity=NodeIdentity("gpu-3"), incarnation=3, software="0.1.0")
    rig = Rig(node(confirm=lambda: other), head()).connect()
    assert refusals(rig.b_events) == ["protocol"]
    assert rig.states()[1] == "down"
    assert rig.states()[0] == "confirming"


def test_hello_is_said_again_with_growing_jitter_until_answered() -> None:
    rig = Rig()
    rig.a.connect(rig.now)
    said: list[float] = []
    while len(said) < 40:
        if rig.a.next_frame() is not None:
            said.append(rig.now)
        due = rig.a.next_timeout()
        assert due is not None
        rig.now = due
        rig.a.handle_timeout(rig.now)
    hellos = [after - before for before, after in itertools.pairwise(said)]
    assert all(0.25 <= wait <= 5.0 for wait in hellos)
    assert hellos[0] <= 0.5
    assert max(hellos) > 3.0
    assert len(set(hellos)) == len(hellos)
    rig.settle()
    assert rig.states() == ("up", "up")


def test_an_answer_to_an_older_hello_is_ignored() -> None:
    rig = Rig()
    rig.a.connect(rig.now)
    rig.carry(rig.a, rig.b)
    late = rig.b.next_frame()
    assert late is not None
    rig.now += 5.0
    rig.a.handle_timeout(rig.now)
    rig.a.receive(late, rig.now)
    assert rig.states()[0] == "connecting"
    rig.settle()
    assert rig.states() == ("up", "up")


def test_an_operator_reads_that_nobody_answers() -> None:
    rig = Rig(head(peer_label="node gpu-2"), node())
    rig.a.connect(rig.now)
    rig.advance(21.0, carry=False)
    told = [e for e in rig.a_events if isinstance(e, PeerRefused)]
    assert [e.code for e in told] == ["handshake_timeout"] * 2
    assert "node gpu-2 did not finish the handshake within 10 s" in told[0].reason
    assert "is one listening there?" in told[0].reason


def test_a_lost_confirm_ends_the_handshake_and_it_is_tried_again() -> None:
    rig = Rig()
    rig.a.connect(rig.now)
    rig.carry(rig.a, rig.b)
    rig.carry(rig.b, rig.a)
    assert rig.states() == ("confirming", "confirming")
    assert rig.a.next_frame() is not None  # the Confirm, lost
    rig.now += 4.9
    rig.a.handle_timeout(rig.now)
    assert rig.states()[0] == "confirming"
    rig.now += 0.2
    rig.a.handle_timeout(rig.now)
    rig.b.handle_timeout(rig.now)
    rig.settle()
    assert refusals(rig.a_events) == refusals(rig.b_events) == ["handshake_timeout"]
    assert rig.states()[0] == "connecting"
    rig.advance(3.0)
    assert rig.states() == ("up", "up")


def test_a_wrong_token_is_reported_on_both_sides_and_tried_again_slowly() -> None:
    rig = Rig(node(tokens=(token("other"),)), head()).connect()
    assert refusals(rig.a_events) == refusals(rig.b_events) == ["token_refused"]
    assert rig.a_events[0].by_peer
    assert "keys/other" in rig.a_events[0].reason
    assert "keys/current" in rig.b_events[0].reason
    first = rig.a.next_timeout()
    assert first is not None
    assert 1.0 <= first - rig.now <= 10.0
    rig.advance(600.0)
    tries = len(refusals(rig.b_events))
    assert 10 <= tries <= 60


def test_the_previous_token_is_tried_when_the_current_one_is_refused() -> None:
    rig = Rig(head(tokens=(token("new"), token())), node()).connect()
    assert refusals(rig.a_events) == ["token_refused"]
    assert "keys/new" in rig.a_events[0].reason
    rig.advance(1.0)
    assert rig.states() == ("up", "up")


def test_a_node_refuses_another_head_and_both_are_told() -> None:
    rig = Rig(node(), head(static=KeyPair.from_secret(b"\x08" * 32))).connect()
    assert refusals(rig.a_events) == ["peer_key_differs"]
    assert refusals(rig.b_events) == ["peer_key_differs"]
    assert rig.b_events[0].by_peer


def test_a_connection_closed_at_the_handshake_is_told() -> None:
    rig = Rig()
    rig.a.connect(rig.now)
    rig.a.disconnected("end of file", rig.now)
    rig.settle()
    assert refusals(rig.a_events) == ["connection_closed"]
    assert rig.states()[0] == "down"
    assert rig.a.next_timeout() is None
    assert rig.states()[1] == "connecting"


def test_only_an_initiator_connects() -> None:
    with pytest.raises(WireError):
        Rig().b.connect(0.0)
