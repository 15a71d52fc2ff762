"""Two endpoints back to back: order, priorities, queues and limits of messages."""

from __future__ import annotations

import pytest

from bus.errors import TooLarge
from bus.frames import PART_BYTES, FrameKind, parse_frame
from bus.ids import CommandId, Epoch, GenerationId, PackedIds, SessionId
from bus.link import LinkLimits
from bus.messages.link import (
    LINK,
    AppendContent,
    GenerateCancel,
    Heartbeat,
    NodeStatus,
    SessionRevoke,
    TokenEvents,
)
from bus.messages.parts import TokenRun
from tests.harness.endpoint_rig import Rig, append, cancel, ends, refusals
from tests.harness.link_identities import node


def test_messages_of_one_priority_keep_their_order() -> None:
    rig = Rig().connect()
    for number in range(50):
        assert rig.b.send(cancel(number))
    rig.settle()
    assert [m.command for m in rig.messages(rig.a_events)] == list(range(50))


def test_lower_priorities_wait_and_long_messages_are_overtaken_between_parts() -> None:
    rig = Rig().connect()
    rig.b.send(NodeStatus(models=()))
    rig.b.send(append(4 * PART_BYTES // 4))
    first = rig.b.next_frame()
    assert first is not None
    rig.b.send(TokenEvents(runs=()))
    rig.b.send(Heartbeat(loop_lag_ms=7))
    frames = [first]
    while (frame := rig.b.next_frame()) is not None:
        frames.append(frame)
    channels = [parse_frame(f).channel for f in frames]
    assert channels == [2, 0, 1, 2, 2, 2, 2, 3]
    for frame in frames:
        rig.a.receive(frame, rig.now)
    rig.settle()
    kinds = [type(e.message) for e in rig.a_events[1:]]
    assert kinds == [Heartbeat, TokenEvents, AppendContent, NodeStatus]


def test_a_refused_frame_comes_again_unchanged_and_first() -> None:
    rig = Rig().connect()
    rig.b.send(cancel(1))
    refused = rig.b.next_frame()
    assert refused is not None
    rig.b.frame_refused()
    assert rig.b.queued_bytes == len(refused)
    rig.b.send(Heartbeat())
    assert rig.b.next_frame() == refused
    rig.b.frame_refused()
    assert rig.b.next_frame() == refused
    rig.a.receive(refused, rig.now)
    rig.settle()
    assert [type(e.message) for e in rig.a_events[1:]] == [GenerateCancel, Heartbeat]


def test_no_counter_serves_two_frames() -> None:
    rig = Rig().connect()
    for number in range(30):
        rig.a.send(cancel(number))
        rig.b.send(cancel(number))
        rig.b.send(Heartbeat())
        if number % 3 == 0 and rig.b.next_frame():
            rig.b.frame_refused()
        rig.settle()
    sealed = [parse_frame(f) for f in rig.seen]
    headers = [f.header for f in sealed if f.kind in (FrameKind.CONFIRM, FrameKind.DATA)]
    # Each direction has keys of its own, so a header may appear once in each.
    assert max(headers.count(h) for h in headers) <= 2
    assert len(set(rig.seen)) == len(rig.seen)


def test_queued_bytes_fall_as_frames_leave() -> None:
    rig = Rig().connect()
    rig.b.send(append(PART_BYTES // 2))
    queued = rig.b.queued_bytes
    assert queued > 2 * PART_BYTES
    rig.b.next_frame()
    assert rig.b.queued_bytes == queued - PART_BYTES
    rig.settle()
    assert rig.b.queued_bytes == 0


def test_a_peer_that_takes_nothing_loses_the_link() -> None:
    rig = Rig(limits=LinkLimits(max_queued_bytes=1_000_000)).connect()
    assert rig.b.send(append(200_000))
    assert not rig.b.send(append(200_000))
    assert rig.states()[1] == "down"
    rig.settle()
    assert ends(rig.b_events) == ["queue_full"]
    assert ends(rig.a_events) == ["queue_full"]


def test_a_message_over_the_limit_is_an_error_of_the_caller() -> None:
    rig = Rig().connect()
    with pytest.raises(TooLarge):
        rig.b.send(append(17 * 1024 * 1024))
    assert rig.states()[1] == "up"


def test_unknown_droppable_messages_are_skipped_and_others_end_the_link() -> None:
    for body, survives in ((b"\x91\x7f", True), (b"\x91\x3f", False), (b"junk", False)):
        rig = Rig().connect()
        link = rig.b._link
        assert link is not None
        rig.a.receive(link._made.sealer.seal(FrameKind.DATA, 3, body), rig.now)
        rig.a_events += rig.a.events()
        assert ends(rig.a_events) == ([] if survives else ["decode"])
        if body == b"\x91\x3f":
            assert "unknown tag 63" in rig.a_events[-1].reason
        assert (rig.states()[0] == "up") is survives


def test_frames_of_the_wrong_kind_end_the_link() -> None:
    early = Rig()
    early.a.connect(early.now)
    early.carry(early.a, early.b)
    early.carry(early.b, early.a)
    assert early.a._link is not None
    confirm = LINK.encode(node().confirm())
    early.b.receive(early.a._link._made.sealer.seal(FrameKind.DATA, 0, confirm), early.now)
    early.settle()
    assert refusals(early.b_events) == ["decode"]
    late = Rig().connect()
    assert late.a._link is not None
    late.b.receive(late.a._link._made.sealer.seal(FrameKind.CONFIRM, 0, b"\x91\x7f"), late.now)
    late.settle()
    assert ends(late.b_events) == ["decode"]


def test_a_session_revoke_and_runs_round_trip() -> None:
    rig = Rig().connect()
    sent = [
        SessionRevoke(command=CommandId(1), session=SessionId("s"), epoch=Epoch(2), reason="park"),
        TokenEvents(
            runs=(
                TokenRun(
                    session=SessionId("s"),
                    epoch=Epoch(2),
                    generation=GenerationId(7),
                    first_seq=0,
                    ids=PackedIds(b"\x01\x00\x00\x00"),
                ),
            )
        ),
    ]
    for message in sent:
        rig.a.send(message)
    rig.settle()
    assert rig.messages(rig.b_events) == sent[::-1]
