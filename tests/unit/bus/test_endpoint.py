"""Two endpoints back to back under virtual time: handshake, order, faults, priorities, timers."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.errors import TooLarge, WireError
from bus.frames import PART_BYTES, FrameKind, pack_header, parse_frame
from bus.ids import CommandId, Epoch, GenerationId, NodeIdentity, PackedIds, SessionId
from bus.keys import new_token, parse_token
from bus.link import LinkDown, LinkIdentity, LinkLimits, LinkUp, MessageReceived, PeerRefused
from bus.messages.link import (
    LINK,
    AppendContent,
    GenerateCancel,
    Goodbye,
    HeadConfirm,
    Heartbeat,
    LeaseRef,
    NodeConfirm,
    NodeStatus,
    SessionRevoke,
    TokenEvents,
    TokenRun,
)

HEAD_KEY = KeyPair.from_secret(bytes(range(32)))
NODE_KEY = KeyPair.from_secret(bytes(range(32, 64)))


def entropy_from(seed: bytes) -> Callable[[int], bytes]:
    state = [0]

    def entropy(count: int) -> bytes:
        state[0] += 1
        return hashlib.shake_256(seed + state[0].to_bytes(8, "big")).digest(count)

    return entropy


def token(label: str = "current") -> Any:
    text = new_token(HEAD_KEY.public, entropy_from(label.encode()))
    return parse_token(text, source=f"keys/{label}")


def head(**changes: Any) -> LinkIdentity:
    made = LinkIdentity(
        role="head",
        name="head-1",
        static=HEAD_KEY,
        tokens=(token(),),
        incarnation=5,
        confirm=lambda: HeadConfirm(identity="head-1", boot=5, software="0.1.0"),
    )
    return replace(made, **changes)


def node(**changes: Any) -> LinkIdentity:
    made = LinkIdentity(
        role="node",
        name="gpu-2",
        static=NODE_KEY,
        tokens=(token(),),
        incarnation=3,
        confirm=lambda: NodeConfirm(
            identity=NodeIdentity("gpu-2"), incarnation=3, software="0.1.0"
        ),
    )
    return replace(made, **changes)


class Rig:
    """An initiator and a responder with a wire between them; nothing is lost unless asked."""

    def __init__(
        self,
        initiator: LinkIdentity | None = None,
        responder: LinkIdentity | None = None,
        limits: LinkLimits | None = None,
        seed: bytes = b"rig",
    ) -> None:
        self.now = 1000.0
        self.a = Endpoint(
            initiator or node(), initiator=True, entropy=entropy_from(seed + b"a"), limits=limits
        )
        self.b = Endpoint(
            responder or head(), initiator=False, entropy=entropy_from(seed + b"b"), limits=limits
        )
        self.seen: list[bytes] = []
        self.a_events: list[Any] = []
        self.b_events: list[Any] = []

    def states(self) -> tuple[str, str]:
        return self.a.state, self.b.state

    def carry(self, sender: Endpoint, receiver: Endpoint) -> int:
        count = 0
        while (frame := sender.next_frame(self.now)) is not None:
            self.seen.append(frame)
            receiver.receive(frame, self.now)
            count += 1
        return count

    def settle(self) -> None:
        while self.carry(self.a, self.b) + self.carry(self.b, self.a):
            pass
        self.a_events += self.a.events()
        self.b_events += self.b.events()

    def connect(self) -> Rig:
        self.a.connect(self.now)
        self.settle()
        return self

    def advance(self, seconds: float, *, carry: bool = True) -> None:
        """Run both endpoints' timers for so long."""
        end = self.now + seconds
        while True:
            times = [t for e in (self.a, self.b) if (t := e.next_timeout()) is not None]
            due = min(times, default=end)
            if due > end:
                break
            self.now = max(self.now, due)
            self.a.handle_timeout(self.now)
            self.b.handle_timeout(self.now)
            if carry:
                self.settle()
            if not times:
                break
        self.now = end
        self.a_events += self.a.events()
        self.b_events += self.b.events()

    def messages(self, events: list[Any]) -> list[Any]:
        found = [e.message for e in events if isinstance(e, MessageReceived)]
        return [m for m in found if not isinstance(m, Heartbeat)]


def cancel(number: int) -> GenerateCancel:
    return GenerateCancel(
        command=CommandId(number),
        session=SessionId("s"),
        epoch=Epoch(1),
        generation=GenerationId(1),
    )


def append(ids: int) -> AppendContent:
    return AppendContent(
        command=CommandId(1),
        session=SessionId("s"),
        epoch=Epoch(1),
        base_tokens=0,
        base_digest=b"",
        ids=PackedIds(bytes(4 * ids)),
    )


def ends(events: list[Any]) -> list[str]:
    return [e.code for e in events if isinstance(e, LinkDown)]


def refusals(events: list[Any]) -> list[str]:
    return [e.code for e in events if isinstance(e, PeerRefused)]


# --- coming up --------------------------------------------------------------------------------


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


# --- messages ---------------------------------------------------------------------------------


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
        rig.a.receive(link.sealer.seal(FrameKind.DATA, 3, body), rig.now)
        rig.a_events = rig.a.events()
        assert ends(rig.a_events) == ([] if survives else ["decode"])
        assert (rig.states()[0] == "up") is survives


def test_frames_of_the_wrong_kind_end_the_link() -> None:
    early = Rig()
    early.a.connect(early.now)
    early.carry(early.a, early.b)
    early.carry(early.b, early.a)
    assert early.a._link is not None
    confirm = LINK.encode(node().confirm())
    early.b.receive(early.a._link.sealer.seal(FrameKind.DATA, 0, confirm), early.now)
    early.settle()
    assert refusals(early.b_events) == ["decode"]
    late = Rig().connect()
    assert late.a._link is not None
    late.b.receive(late.a._link.sealer.seal(FrameKind.CONFIRM, 0, b"\x91\x7f"), late.now)
    late.settle()
    assert ends(late.b_events) == ["decode"]


# --- faults -----------------------------------------------------------------------------------


def test_a_gap_ends_the_link_on_both_sides_and_connect_makes_it_again() -> None:
    rig = Rig().connect()
    rig.b.send(cancel(1))
    rig.b.send(cancel(2))
    assert rig.b.next_frame() is not None  # lost
    rig.settle()
    assert ends(rig.a_events) == ["gap"]
    assert ends(rig.b_events) == ["gap"]
    assert rig.b_events[-1].by_peer
    assert rig.states() == ("down", "down")
    rig.connect()
    assert rig.states() == ("up", "up")


def test_duplicates_are_dropped_in_silence() -> None:
    rig = Rig().connect()
    for number in range(3):
        rig.b.send(cancel(number))
    while (frame := rig.b.next_frame()) is not None:
        rig.a.receive(frame, rig.now)
        rig.a.receive(frame, rig.now)
    rig.settle()
    assert [m.command for m in rig.messages(rig.a_events)] == [0, 1, 2]
    assert rig.states()[0] == "up"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_l4_faults_never_deliver_anything_wrong(data: st.DataObject) -> None:
    """Whatever is lost, doubled, flipped or swapped: a prefix arrives, or the link ends."""
    rig = Rig(seed=data.draw(st.binary(min_size=1, max_size=4))).connect()
    for number in range(12):
        rig.b.send(cancel(number))
        if number % 4 == 0:
            rig.b.send(append(PART_BYTES // 2))
    frames: list[bytes] = []
    while (frame := rig.b.next_frame()) is not None:
        fault = data.draw(st.sampled_from(["none"] * 6 + ["drop", "twice", "flip", "swap"]))
        if fault == "flip":
            bit = data.draw(st.integers(0, 8 * len(frame) - 1))
            frame = (
                frame[: bit // 8] + bytes([frame[bit // 8] ^ 1 << bit % 8]) + frame[bit // 8 + 1 :]
            )
        if fault == "swap" and frames:
            frames.insert(-1, frame)
        elif fault != "drop":
            frames += [frame] * (2 if fault == "twice" else 1)
    for frame in frames:
        rig.a.receive(frame, rig.now)
    events = rig.a.events()
    commands = [m.command for m in rig.messages(events) if isinstance(m, GenerateCancel)]
    assert commands == list(range(len(commands)))
    assert len(commands) == 12 or rig.states()[0] == "down" or parse_gap(rig)


def parse_gap(rig: Rig) -> bool:
    """The last frames were lost: the next one that arrives shows it."""
    rig.b.send(cancel(99))
    frame = rig.b.next_frame()
    assert frame is not None
    rig.a.receive(frame, rig.now)
    return rig.states()[0] == "down"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_change_nothing(data: bytes) -> None:
    rig = Rig().connect()
    for endpoint in (rig.a, rig.b):
        endpoint.receive(data, rig.now)
        endpoint.receive(b"SFLF\x01" + data, rig.now)
        assert endpoint.state == "up"
    rig.settle()
    assert len(rig.a_events) == len(rig.b_events) == 1


def test_frames_of_another_link_are_ignored() -> None:
    first, second = Rig(seed=b"1").connect(), Rig(seed=b"2").connect()
    first.b.send(cancel(1))
    frame = first.b.next_frame()
    assert frame is not None
    second.a.receive(frame, 0.0)
    assert second.a.events() == []
    assert second.a.ignored_frames == 1


def test_a_stale_answer_ends_the_link_only_when_it_names_it() -> None:
    rig = Rig().connect()
    assert rig.a.link_id is not None
    rig.a.receive(pack_header(FrameKind.STALE, rig.a.link_id ^ 1), rig.now)
    assert rig.states()[0] == "up"
    rig.a.receive(pack_header(FrameKind.STALE, rig.a.link_id), rig.now)
    rig.settle()
    assert ends(rig.a_events) == ["stale"]


def test_a_replayed_handshake_makes_no_link() -> None:
    rig = Rig().connect()
    old = list(rig.seen)
    rig.a.close("bye", rig.now)
    rig.settle()
    assert rig.states()[1] == "down"
    for frame in old:
        rig.b.receive(frame, rig.now)
    rig.settle()
    assert rig.states()[1] == "down"
    assert refusals(rig.b_events) == ["hello_not_newer"]


# --- ending -----------------------------------------------------------------------------------


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


# --- time -------------------------------------------------------------------------------------


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
    assert beats(rig) == expected
    assert rig.states() == ("up", "up")


def test_heartbeats_carry_what_the_owner_supplies() -> None:
    rig = Rig().connect()
    rig.b.heartbeat = lambda: Heartbeat(loop_lag_ms=42)
    rig.advance(5.1)
    assert rig.a_events[-1].message.loop_lag_ms == 42


def test_no_heartbeat_while_the_link_is_in_use() -> None:
    rig = Rig().connect()
    for number in range(20):
        rig.b.send(cancel(number))
        rig.settle()
        rig.advance(1.0)
    assert beats(rig) == 0


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
