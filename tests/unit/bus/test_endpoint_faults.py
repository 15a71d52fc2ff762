"""Two endpoints back to back: lost, doubled, harmed and foreign frames."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.frames import PART_BYTES
from bus.messages.link import GenerateCancel
from tests.harness.endpoint_rig import Rig, append, cancel, ends, refusals


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
