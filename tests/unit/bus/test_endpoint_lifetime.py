"""Two endpoints back to back: heartbeats, silence, and how a link is ended."""

from __future__ import annotations

import pytest

from bus.frames import PART_BYTES
from bus.link import LinkDown, LinkLimits, MessageReceived
from bus.messages.link import LINK, Goodbye, Heartbeat
from tests.harness.endpoint_rig import Rig, append, cancel, ends


def test_close_says_goodbye_and_drops_what_waited() -> None:
    rig = Rig().connect()
    rig.b.send(append(PART_BYTES))
    rig.b.close("the head is going down", rig.now)
    rig.settle()
    assert ends(rig.b_events) == ["closed"]
    (down,) = [e for e in rig.a_events if isinstance(e, LinkDown)]
    assert down.code == "goodbye"
    assert down.by_peer
    assert "head head-1 ended the link: the head is going down" in down.reason
    assert rig.messages(rig.a_events) == []


def test_goodbye_follows_a_refused_frame_in_order() -> None:
    rig = Rig().connect()
    rig.b.send(Heartbeat(loop_lag_ms=3))
    assert rig.b.next_frame() is not None
    rig.b.frame_refused()
    rig.b.close("bye", rig.now)
    rig.settle()
    assert ends(rig.a_events) == ["goodbye"]
    assert rig.a_events[1].message.loop_lag_ms == 3


def test_a_disconnect_ends_at_once_and_nothing_is_kept() -> None:
    rig = Rig().connect()
    rig.a.send(cancel(1))
    rig.a.disconnected("connection reset", rig.now)
    assert rig.a.next_frame() is None
    assert rig.a.queued_bytes == 0
    rig.settle()
    assert ends(rig.a_events) == ["disconnected"]


def test_a_goodbye_of_any_length_fits() -> None:
    rig = Rig().connect()
    rig.b.close("é" * 4000, rig.now)
    rig.settle()
    assert ends(rig.a_events) == ["goodbye"]
    assert LINK.decode(LINK.encode(Goodbye(reason="x" * 500)))


def beats(rig: Rig) -> int:
    return sum(
        isinstance(e, MessageReceived) and isinstance(e.message, Heartbeat) for e in rig.a_events
    )


@pytest.mark.parametrize(
    ("busy", "silence_s", "expected"), [(False, 30.0, 12), (True, 30.0, 60), (False, 3.0, 60)]
)
def test_heartbeats_go_out_after_silence(busy: bool, silence_s: float, expected: int) -> None:
    rig = Rig(limits=LinkLimits(silence_s=silence_s)).connect()
    rig.b.set_busy(busy)
    rig.advance(60.5)
    # The first one comes after half to all of the interval.
    assert beats(rig) in (expected, expected + 1)
    assert rig.states() == ("up", "up")


def test_heartbeats_carry_what_the_owner_supplies() -> None:
    rig = Rig().connect()
    rig.b.heartbeat = lambda: Heartbeat(loop_lag_ms=42)
    rig.advance(5.1)
    assert rig.a_events[-1].message.loop_lag_ms == 42


def test_heartbeats_go_out_while_the_link_is_in_use() -> None:
    """They tell what was sent before, which nothing else does when the last frame is lost."""
    rig = Rig().connect()
    for number in range(20):
        rig.b.send(cancel(number))
        rig.settle()
        rig.advance(1.0)
    assert beats(rig) in (4, 5)


@pytest.mark.parametrize("busy", [False, True])
def test_a_last_frame_that_is_lost_ends_the_link_at_the_next_heartbeat(busy: bool) -> None:
    rig = Rig().connect()
    rig.b.set_busy(busy)
    rig.b.send(cancel(1))
    assert rig.b.next_frame() is not None  # and it never comes
    rig.advance(1.1 if busy else 5.1)
    assert ends(rig.a_events) == ["gap"]
    assert "last 1 frames" in rig.a_events[-1].reason


def test_frames_that_are_sealed_after_a_heartbeat_was_queued_are_not_missed() -> None:
    rig = Rig().connect()
    for number in range(3):
        rig.b.send(cancel(number))
    rig.advance(5.1)
    rig.b.send(cancel(4))
    rig.settle()
    assert rig.states() == ("up", "up")


def test_a_silent_link_is_lost_after_thirty_seconds() -> None:
    rig = Rig().connect()
    start = rig.now
    rig.advance(29.9, carry=False)
    assert rig.states()[0] == "up"
    rig.advance(0.2, carry=False)
    assert ends(rig.a_events) == ["silent"]
    assert "for 30 s" in rig.a_events[-1].reason
    assert rig.now - start < 31


def test_no_silence_limit_keeps_the_link() -> None:
    rig = Rig(limits=LinkLimits(silence_s=0)).connect()
    rig.advance(1000.0, carry=False)
    assert rig.states()[0] == "up"


def test_heartbeats_do_not_pile_up_behind_a_blocked_socket() -> None:
    rig = Rig(limits=LinkLimits(silence_s=0)).connect()
    rig.b.send(cancel(1))
    assert rig.b.next_frame() is not None
    rig.b.frame_refused()
    queued = rig.b.queued_bytes
    rig.advance(100.0, carry=False)
    assert rig.b.queued_bytes == queued


@pytest.mark.parametrize(
    ("silence_s", "handshake_s", "confirm_s"),
    [(30.0, 10.0, 5.0), (0.0, 10.0, 5.0), (2.0, 2.0, 1.0)],
)
def test_a_handshake_is_not_waited_for_longer_than_a_silent_link(
    silence_s: float, handshake_s: float, confirm_s: float
) -> None:
    limits = LinkLimits.with_silence(silence_s)
    assert (limits.silence_s, limits.handshake_s, limits.confirm_s) == (
        silence_s,
        handshake_s,
        confirm_s,
    )
