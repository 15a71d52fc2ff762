"""Plaintext Stale: what it is for, and what a forged one costs."""

from __future__ import annotations

from bus.frames import FrameKind, pack_header, parse_frame
from bus.link import LinkDown
from tests.harness.endpoint_rig import Rig, cancel, ends, refusals
from tests.harness.link_identities import head, node


def stale(rig: Rig) -> bytes:
    assert rig.a.link_id is not None
    return pack_header(FrameKind.STALE, rig.a.link_id)


def test_a_peer_that_does_not_know_the_link_loses_it_after_a_quarter_of_a_second() -> None:
    rig = Rig().connect()
    rig.a.receive(stale(rig), rig.now)
    rig.advance(0.24, carry=False)
    assert rig.states()[0] == "up"
    rig.advance(0.02, carry=False)
    assert ends(rig.a_events) == ["stale"]


def test_off_path_a_stale_has_to_name_the_link() -> None:
    rig = Rig().connect()
    assert rig.a.link_id is not None
    for guess in range(1000):
        rig.a.receive(pack_header(FrameKind.STALE, rig.a.link_id ^ (guess + 1)), rig.now)
    rig.advance(1.0)
    assert rig.states() == ("up", "up")
    assert rig.a.queued_bytes == 0


def test_on_path_forged_stales_cost_a_probe_a_second_and_no_link() -> None:
    """Who can write into the connection reads the link id there, but can seal nothing."""
    rig = Rig().connect()
    rig.seen.clear()
    for _ in range(100):
        for _ in range(50):
            rig.a.receive(stale(rig), rig.now)
            rig.b.receive(stale(rig), rig.now)
        rig.settle()
        rig.advance(0.1)
    assert rig.states() == ("up", "up")
    assert not any(isinstance(e, LinkDown) for e in rig.a_events + rig.b_events)
    # 10 s: ten probes and their answers each way, and few heartbeats.
    assert len(rig.seen) <= 2 * 2 * 10 + 8


def test_a_stream_that_goes_on_proves_a_stale_wrong() -> None:
    rig = Rig().connect()
    rig.a.receive(stale(rig), rig.now)
    for number in range(5):
        rig.b.send(cancel(number))
        rig.settle()
        rig.advance(0.2)
    assert [m.command for m in rig.messages(rig.a_events)] == list(range(5))


def test_a_recorded_frame_proves_nothing() -> None:
    rig = Rig().connect()
    rig.b.send(cancel(1))
    frame = rig.b.next_frame()
    assert frame is not None
    rig.a.receive(frame, rig.now)
    rig.a.receive(stale(rig), rig.now)
    rig.a.receive(frame, rig.now)
    rig.advance(0.3, carry=False)
    assert ends(rig.a_events) == ["stale"]


def test_answers_to_probes_are_bounded_when_they_are_not_read() -> None:
    rig = Rig().connect()
    assert rig.a.link is not None
    for _ in range(1000):
        rig.a.link.probe()
        rig.carry(rig.a, rig.b)
    assert rig.b.queued_bytes < 1000
    rig.settle()
    assert rig.states() == ("up", "up")


def test_without_probes_a_stale_ends_the_link_at_once() -> None:
    rig = Rig(node(), head(capabilities=())).connect()
    rig.a.receive(stale(rig), rig.now)
    rig.settle()
    assert ends(rig.a_events) == ["stale"]


def test_a_stale_at_the_handshake_has_it_tried_again() -> None:
    rig = Rig()
    rig.a.connect(rig.now)
    rig.carry(rig.a, rig.b)
    rig.carry(rig.b, rig.a)
    rig.a.receive(stale(rig), rig.now)
    rig.settle()
    assert refusals(rig.a_events) == ["stale"]
    rig.advance(3.0)
    assert rig.states() == ("up", "up")
    assert parse_frame(rig.seen[0]).kind is FrameKind.HELLO
