"""New frame keys inside a link that is up: nothing is lost, reordered, or ended by it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.endpoint import Endpoint
from bus.frames import PART_BYTES, FrameKind, FrameOpener, parse_frame
from bus.link import LinkDown, LinkLimits, LinkUp
from bus.messages.link import NodeStatus
from tests.harness.endpoint_rig import Rig, append, cancel, ends
from tests.harness.link_identities import head, key, node


def phases(rig: Rig) -> tuple[int, int]:
    return tuple(end.link.phase if end.link else -1 for end in (rig.a, rig.b))  # type: ignore[return-value]


def opener_of(endpoint: Endpoint) -> FrameOpener:
    assert endpoint.link is not None
    return endpoint.link._made.opener


def start(endpoint: Endpoint, now: float) -> None:
    assert endpoint.link is not None
    endpoint.link.rekey(now)


def test_every_hour_the_keys_change_and_nobody_notices() -> None:
    rig = Rig().connect()
    for minute in range(150):
        rig.a.send(cancel(minute))
        rig.b.send(cancel(minute))
        rig.settle()
        rig.advance(60.0)
    assert phases(rig) == (2, 2)
    for events in (rig.a_events, rig.b_events):
        assert [m.command for m in rig.messages(events)] == list(range(150))
        assert sum(isinstance(e, LinkUp) for e in events) == 1
        assert not any(isinstance(e, LinkDown) for e in events)
    steps = [f for f in rig.seen if parse_frame(f).kind is FrameKind.REKEY]
    assert len(steps) == 2 * 3


def test_keys_change_after_so_many_frames_and_counters_begin_again() -> None:
    rig = Rig(limits=LinkLimits(rekey_frames=50)).connect()
    for number in range(600):
        rig.b.send(cancel(number))
        rig.settle()
    assert min(phases(rig)) >= 10
    assert [m.command for m in rig.messages(rig.a_events)] == list(range(600))
    assert max(parse_frame(f).counter for f in rig.seen) <= 52


def test_the_old_keys_are_gone_when_both_directions_have_new_ones() -> None:
    rig = Rig().connect()
    rig.b.send(cancel(1))
    old = rig.b.next_frame()
    assert old is not None
    rig.a.receive(old, rig.now)
    before = {opener_of(e)._keys for e in (rig.a, rig.b)}
    start(rig.a, rig.now)
    rig.settle()
    after = {opener_of(e)._keys for e in (rig.a, rig.b)}
    assert len(before | after) == 4
    # A copy of a frame of theirs that comes late is dropped, and harms nothing.
    rig.a.receive(old, rig.now)
    rig.b.send(cancel(2))
    rig.settle()
    assert [m.command for m in rig.messages(rig.a_events)] == [1, 2]


def test_when_both_sides_begin_at_once_the_initiators_goes_on() -> None:
    rig = Rig().connect()
    start(rig.a, rig.now)
    start(rig.b, rig.now)
    for number in range(5):
        rig.a.send(cancel(number))
        rig.b.send(cancel(number))
    rig.settle()
    assert phases(rig) == (1, 1)
    for events in (rig.a_events, rig.b_events):
        assert [m.command for m in rig.messages(events)] == list(range(5))
    start(rig.b, rig.now)
    rig.settle()
    assert phases(rig) == (2, 2)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=120), st.binary(min_size=1, max_size=4))
def test_any_interleaving_delivers_everything_in_order(steps: list[int], seed: bytes) -> None:
    rig = Rig(seed=seed).connect()
    ends_of = (rig.a, rig.b)
    sent = [0, 0]
    on_the_way: tuple[list[bytes], list[bytes]] = ([], [])
    for step in steps:
        side = step % 2
        endpoint, other = ends_of[side], ends_of[1 - side]
        if step < 2:
            endpoint.send(append(PART_BYTES // 2) if sent[side] % 5 == 4 else cancel(sent[side]))
            sent[side] += 1
        elif step < 4 and (frame := endpoint.next_frame(rig.now)) is not None:
            on_the_way[side].append(frame)
        elif step < 6 and on_the_way[side]:
            other.receive(on_the_way[side].pop(0), rig.now)
        elif step >= 6:
            start(endpoint, rig.now)
    for side in (0, 1):
        for frame in on_the_way[side]:
            ends_of[1 - side].receive(frame, rig.now)
    rig.settle()
    assert rig.states() == ("up", "up")
    assert phases(rig)[0] == phases(rig)[1]
    for count, events in ((sent[0], rig.b_events), (sent[1], rig.a_events)):
        expected = [1 if number % 5 == 4 else number for number in range(count)]
        assert [m.command for m in rig.messages(events)] == expected


def test_a_message_in_parts_and_a_full_socket_at_the_change() -> None:
    rig = Rig().connect()
    rig.b.send(append(PART_BYTES))
    first = rig.b.next_frame()
    assert first is not None
    rig.b.frame_refused()
    start(rig.b, rig.now)
    start(rig.a, rig.now)
    rig.carry(rig.a, rig.b)
    rig.settle()
    assert phases(rig) == (1, 1)
    assert [m.ids for m in rig.messages(rig.a_events)] == [append(PART_BYTES).ids]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_lost_step_ends_the_link_and_it_is_made_again(step: int) -> None:
    rig = Rig().connect()
    start(rig.a, rig.now)
    sides = [(rig.a, rig.b), (rig.b, rig.a), (rig.a, rig.b)]
    for sender, receiver in sides[: step - 1]:
        rig.carry(sender, receiver)
    sender = sides[step - 1][0]
    assert sender.next_frame() is not None  # lost
    sender.send(NodeStatus(models=()))
    rig.settle()
    rig.advance(6.0)
    assert "gap" in ends(rig.a_events) + ends(rig.b_events)
    assert "up" not in rig.states()
    rig.connect()
    assert rig.states() == ("up", "up")


def test_a_message_lost_right_before_the_change_is_noticed() -> None:
    rig = Rig().connect()
    start(rig.a, rig.now)
    rig.carry(rig.a, rig.b)
    rig.b.send(cancel(1))
    answer, lost = rig.b.next_frame(), rig.b.next_frame()
    assert answer is not None
    assert lost is not None
    # The other way round, so that the message is the last frame of the old keys.
    other = Rig().connect()
    other.b.send(cancel(1))
    assert other.b.next_frame() is not None  # lost
    start(other.b, other.now)
    other.settle()
    assert ends(other.a_events) == ["gap"]
    assert "before a change of keys" in other.a_events[-1].reason or "channel" in str(
        other.a_events[-1].reason
    )


def test_another_static_key_is_refused() -> None:
    rig = Rig().connect()
    assert rig.a.link is not None
    assert rig.a.link._rekey is not None
    rig.a.link._rekey._static = key("somebody else")
    start(rig.a, rig.now)
    rig.settle()
    assert ends(rig.b_events) == ["auth"]
    assert "another key" in rig.b_events[-1].reason


def test_a_peer_that_does_not_finish_loses_the_link() -> None:
    rig = Rig(limits=LinkLimits(silence_s=0.0, rekey_s=10.0, rekey_within_s=5.0)).connect()
    rig.advance(14.9, carry=False)
    assert rig.states()[0] == "up"
    rig.advance(0.2, carry=False)
    assert ends(rig.a_events) == ["rekey"]
    assert "did not finish a change of keys within 5 s" in rig.a_events[-1].reason


def test_a_peer_that_can_not_is_not_asked() -> None:
    rig = Rig(node(), head(capabilities=("probe",))).connect()
    rig.advance(4 * 3600.0)
    assert phases(rig) == (0, 0)
    assert rig.states() == ("up", "up")


def test_no_rekey_when_its_time_is_off() -> None:
    rig = Rig(limits=LinkLimits(rekey_s=0.0)).connect()
    rig.advance(2 * 3600.0)
    assert phases(rig) == (0, 0)
