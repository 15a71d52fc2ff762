"""Who sits on the path of a link, and a peer that lies: what each may cause, over changes of keys.

On the path nothing can be made, so the most is that the link ends and is made again. What arrives
is at any moment a beginning of what was sent, in order, each once.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus import crypto, frames
from bus.endpoint import Endpoint
from bus.frames import FRAME_COUNTS, PHASES, FrameKind, pack_header, parse_frame
from bus.link import LinkLimits
from bus.rekey import RekeyStep
from tests.harness.endpoint_rig import Rig, cancel, ends
from tests.harness.link_identities import head, node

SMALL = LinkLimits(rekey_frames=6)


def spoil(rng: random.Random, frame: bytes, seen: list[bytes]) -> bytes:
    """One frame that the path made out of those it saw."""
    other = rng.choice(seen)
    link_id = parse_frame(frame).link_id
    flags, counter = rng.randrange(2 * PHASES), rng.choice((0, 1, 2**32, 2**33, 2**64 - 1))
    return rng.choice(
        (
            other,
            frame[:24] + other[24:],
            other[:24] + frame[24:],
            frame[:23] + bytes([flags]) + frame[24:],
            frame[:14] + counter.to_bytes(8, "big") + frame[22:],
            frame[:22] + bytes([rng.randrange(5)]) + frame[23:],
            frame[:5] + bytes([rng.randint(1, 7)]) + frame[6:],
            frame[: rng.randrange(24, len(frame) + 1)],
            pack_header(FrameKind.STALE, link_id),
            pack_header(FrameKind.REJECT, link_id) + b"\x01\x01\x01",
            pack_header(FrameKind.REJECT, link_id) + bytes([rng.randrange(256), 1, 1]),
        )
    )


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), harm=st.sampled_from((0.002, 0.02, 0.2)))
def test_on_the_path_nothing_can_be_made_doubled_or_reordered(seed: int, harm: float) -> None:
    rng = random.Random(seed)
    rig = Rig(seed=b"%d" % seed, limits=SMALL).connect()
    sides = (rig.a, rig.b)
    sent: tuple[list[int], list[int]] = ([], [])
    seen = list(rig.seen)
    for number in range(120):
        side = rng.randrange(2)
        if sides[side].send(cancel(number)):
            sent[side].append(number)
        rig.now += 0.01
        for sender, receiver in (sides, sides[::-1]):
            while (frame := sender.next_frame(rig.now)) is not None:
                seen.append(frame)
                while rng.random() < harm:
                    receiver.receive(spoil(rng, frame, seen), rig.now)
                if rng.random() >= harm / 4:
                    receiver.receive(frame, rig.now)
            sender.handle_timeout(rig.now)
        if "up" not in rig.states():
            break
    rig.settle()
    for events, meant in ((rig.b_events, sent[0]), (rig.a_events, sent[1])):
        arrived = [message.command for message in rig.messages(events)]
        assert arrived == meant[: len(arrived)]
    assert set(ends(rig.a_events) + ends(rig.b_events)) <= {
        *("gap", "auth", "decode", "stale", "protocol"),
    }
    for end in sides:
        end.disconnected("its connection was made again", rig.now)
    rig.connect()
    assert rig.states() == ("up", "up")


def record(rig: Rig, sender: Endpoint, number: int) -> bytes:
    """A frame of a sender that arrived, too."""
    sender.send(cancel(number))
    frame = sender.next_frame(rig.now)
    assert frame is not None
    (rig.b if sender is rig.a else rig.a).receive(frame, rig.now)
    return frame


def change_keys(rig: Rig, times: int = 1) -> None:
    for _ in range(times):
        assert rig.a.link is not None
        rig.a.link.rekey(rig.now)
        rig.settle()


@pytest.mark.parametrize("later", [1, 2, 3, 4])
def test_a_frame_of_an_older_phase_is_dropped(later: int) -> None:
    rig = Rig().connect()
    old = record(rig, rig.b, 1)
    change_keys(rig, later)
    rig.a.receive(old, rig.now)
    record(rig, rig.b, 2)
    rig.settle()
    assert [m.command for m in rig.messages(rig.a_events)] == [1, 2]
    assert rig.states() == ("up", "up")


@pytest.mark.parametrize("later", [5, 7, 8, 16])
def test_a_frame_of_a_much_older_phase_opens_under_no_key(later: int) -> None:
    """The header has the phase modulo 8, so it may be taken for a present or a later one."""
    rig = Rig().connect()
    old = record(rig, rig.b, 1)
    change_keys(rig, later)
    rig.a.receive(old, rig.now)
    rig.settle()
    assert [m.command for m in rig.messages(rig.a_events)] == [1]
    assert ends(rig.a_events) == (["auth"] if later % PHASES == 0 else ["gap"])


def test_a_frame_of_one_link_opens_on_no_other_in_no_direction_and_channel() -> None:
    first, second = Rig(seed=b"1").connect(), Rig(seed=b"2").connect()
    assert second.a.link_id is not None
    frame = record(first, first.b, 1)
    forged = frame[:6] + second.a.link_id.to_bytes(8, "big") + frame[14:]
    second.a.receive(forged, second.now)
    second.settle()
    assert ends(second.a_events) == ["auth"]
    first.b.receive(frame, first.now)
    first.settle()
    assert ends(first.b_events) == ["auth"]
    third = Rig().connect()
    frame = record(third, third.b, 1)
    third.a.receive(frame[:22] + bytes([0]) + frame[23:], third.now)
    third.settle()
    assert ends(third.a_events) == ["auth"]


# --- a peer that has the keys and lies --------------------------------------------------------


def lie(rig: Rig, payload: bytes) -> list[str]:
    """How the link of the honest side ends after one REKEY frame of the other."""
    rig.a._outbox.put(FrameKind.REKEY, 0, payload)
    rig.settle()
    return ends(rig.b_events)


COUNTS = FRAME_COUNTS.pack(9, 9, 9, 9, 9)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (bytes([RekeyStep.ANSWER]) + COUNTS + bytes(144), "decode"),
        (bytes([RekeyStep.DONE]) + COUNTS, "decode"),
        (bytes([RekeyStep.DONE]), "decode"),
        (bytes([RekeyStep.OFFER]), "auth"),
        (bytes([RekeyStep.OFFER]) + bytes(96), "auth"),
        (bytes([9]) + COUNTS, "decode"),
        (b"\0", "decode"),
    ],
)
def test_a_step_of_a_rekey_out_of_turn_ends_the_link(payload: bytes, code: str) -> None:
    rig = Rig().connect()
    assert lie(rig, payload) == [code]


def test_a_second_offer_before_the_first_is_done_ends_the_link() -> None:
    rig = Rig().connect()
    assert rig.a.link is not None
    assert rig.a.link._rekey is not None
    offer = rig.a.link._rekey.offer(rig.now)
    rig.a._outbox.put(FrameKind.REKEY, 0, offer)
    rig.a._outbox.put(FrameKind.REKEY, 0, offer)
    rig.carry(rig.a, rig.b)
    rig.b_events += rig.b.events()
    assert ends(rig.b_events) == ["decode"]


def test_wrong_counts_at_a_change_of_keys_end_the_link() -> None:
    """As if frames had been lost, or more were announced than came."""
    for off in (-1, 1, 2**40):
        rig = Rig().connect()
        assert rig.a.link is not None
        rig.a.link.rekey(rig.now)
        rig.carry(rig.a, rig.b)
        sealer = rig.b.link._made.sealer if rig.b.link else None
        assert sealer is not None
        sealer._counters[4] += off if off > 0 else 0
        if off < 0:
            rig.b.send(cancel(1))
            assert rig.b.next_frame() is not None  # the answer, lost
        rig.settle()
        assert ends(rig.a_events) == ["gap"]


# --- counters at their limit ------------------------------------------------------------------


def sealer_of(end: Endpoint) -> Any:
    assert end.link is not None
    return end.link._made.sealer


def test_a_counter_that_is_used_up_ends_the_link_and_it_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_COUNTER", 40)
    rig = Rig(node(), head(capabilities=("probe",))).connect()
    for number in range(100):
        rig.b.send(cancel(number))
        rig.settle()
    assert ends(rig.b_events) == ["counter"]
    assert [m.command for m in rig.messages(rig.a_events)] == list(range(40))
    rig.connect()
    assert rig.states() == ("up", "up")


def test_a_link_can_be_closed_when_its_counter_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_COUNTER", 40)
    rig = Rig().connect()
    sealer_of(rig.b)._counters[0] = 40
    rig.b.close("the head was stopped", rig.now)
    assert ends(rig.b.events()) == ["closed"]
    assert rig.b.next_frame() is None


def test_a_key_never_meets_a_header_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over eight phases and more, also where the phase in the header has wrapped."""
    used: set[tuple[bytes, bytes]] = set()
    seal = crypto.secretbox_seal

    def noted(key: bytes, nonce: bytes, plaintext: bytes) -> bytes:
        assert (key, nonce) not in used
        used.add((key, nonce))
        return seal(key, nonce, plaintext)

    monkeypatch.setattr(frames, "secretbox_seal", noted)
    rig = Rig(limits=SMALL).connect()
    for number in range(200):
        rig.a.send(cancel(number))
        rig.b.send(cancel(number))
        rig.settle()
    assert rig.a.link is not None
    assert rig.a.link.phase > 2 * PHASES
    assert len(used) > 400
