"""Frames: the header, the golden vector of keys and sealing, order, and joining of parts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import AuthError, DecodeError, WireError
from bus.frames import (
    CHANNELS,
    MAX_FRAME_BYTES,
    PART_BYTES,
    FrameKind,
    FrameOpener,
    FrameSealer,
    PartJoiner,
    derive_frame_keys,
    derive_rekey_psk,
    pack_header,
    parse_frame,
)

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "frames.json").read_text()
)
CHAINING_KEY = bytes(range(64))
HANDSHAKE_HASH = bytes(range(64, 128))
LINK = 0x0102030405060708


def keys() -> tuple[bytes, ...]:
    return derive_frame_keys(CHAINING_KEY, HANDSHAKE_HASH, from_initiator=True)


def pair() -> tuple[FrameSealer, FrameOpener]:
    return FrameSealer(keys(), LINK), FrameOpener(keys())


def open_(opener: FrameOpener, data: bytes) -> bytes | None:
    return opener.open(parse_frame(data))


def test_header_layout() -> None:
    header = pack_header(FrameKind.DATA, LINK, 9, 3, more=True)
    assert header.hex() == "53464c460104010203040506070800000000000000090301"


@pytest.mark.parametrize("from_initiator", [True, False])
@pytest.mark.parametrize("phase", [0, 7])
def test_keys_agree_with_an_independent_hkdf(from_initiator: bool, phase: int) -> None:
    made = derive_frame_keys(
        CHAINING_KEY, HANDSHAKE_HASH, from_initiator=from_initiator, phase=phase
    )
    for channel in range(CHANNELS):
        info = b"superfluid link" + HANDSHAKE_HASH + bytes([1 if from_initiator else 2, channel])
        hkdf = HKDF(hashes.BLAKE2b(64), 32, salt=None, info=info + struct.pack(">I", phase))
        assert made[channel] == hkdf.derive(CHAINING_KEY)


def test_the_key_of_a_rekey_agrees_with_an_independent_hkdf() -> None:
    hkdf = HKDF(hashes.BLAKE2b(64), 32, salt=None, info=b"superfluid rekey" + HANDSHAKE_HASH)
    expected = hkdf.derive(CHAINING_KEY)
    assert derive_rekey_psk(CHAINING_KEY, HANDSHAKE_HASH).reveal() == expected
    assert expected.hex() == GOLDEN["rekey"]["psk"]


def test_golden_change_of_keys() -> None:
    new = derive_frame_keys(CHAINING_KEY, HANDSHAKE_HASH, from_initiator=True, phase=1)
    assert [key.hex() for key in new] == GOLDEN["rekey"]["keys"]
    sealer, opener = pair()
    assert open_(opener, sealer.seal(FrameKind.DATA, 3, b"before")) == b"before"
    last = sealer.switch(2, b"noise", new)
    assert last.hex() == GOLDEN["rekey"]["switch"]
    payload = open_(opener, last)
    assert payload == b"\x02" + struct.pack(">5Q", 1, 0, 0, 1, 0) + b"noise"
    after = sealer.seal(FrameKind.DATA, 3, b"after")
    assert after.hex() == GOLDEN["rekey"]["after"]
    opener.switch((1, 0, 0, 1, 0), new)
    assert open_(opener, after) == b"after"
    parsed = parse_frame(after)
    assert (parsed.counter, parsed.phase) == (0, 1)


def test_a_change_of_keys_shows_what_is_missing() -> None:
    new = derive_frame_keys(CHAINING_KEY, HANDSHAKE_HASH, from_initiator=True, phase=1)
    sealer, opener = pair()
    lost = sealer.seal(FrameKind.DATA, 3, b"lost")
    assert open_(opener, sealer.switch(2, b"", new)) is not None
    with pytest.raises(WireError, match="1 frames before a change of keys went missing"):
        opener.switch((1, 0, 0, 1, 0), new)
    with pytest.raises(WireError, match="the last frames before a change of keys"):
        open_(opener, sealer.seal(FrameKind.DATA, 0, b"too early"))
    opener.switch((1, 0, 0, 0, 0), new)
    assert open_(opener, lost) is None


def test_golden_frames() -> None:
    """The bytes on the wire never change within frame version 1."""
    assert GOLDEN["chaining_key"] == CHAINING_KEY.hex()
    assert GOLDEN["handshake_hash"] == HANDSHAKE_HASH.hex()
    for direction in ("initiator", "responder"):
        made = derive_frame_keys(
            CHAINING_KEY, HANDSHAKE_HASH, from_initiator=direction == "initiator"
        )
        assert [key.hex() for key in made] == GOLDEN["keys"][direction]
    sealer, opener = pair()
    for golden in GOLDEN["frames"]:
        part = bytes.fromhex(golden["part"])
        sealed = sealer.seal(
            FrameKind[golden["kind"]], golden["channel"], part, more=golden["more"]
        )
        assert sealed.hex() == golden["frame"]
        assert open_(opener, bytes.fromhex(golden["frame"])) == part


def test_every_flipped_bit_is_refused() -> None:
    sealer, _ = pair()
    frame = sealer.seal(FrameKind.DATA, 0, b"tokens")
    for bit in range(8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << (bit % 8)
        _, opener = pair()
        if bit == 8 * 23 + 3:
            # Of a key phase that is over, so it is dropped unread.
            assert open_(opener, bytes(changed)) is None
            continue
        ahead = bit in (8 * 23 + 1, 8 * 23 + 2)
        with pytest.raises(WireError if ahead else (AuthError, DecodeError)):
            open_(opener, bytes(changed))
        assert open_(opener, frame) == b"tokens"


def test_order_duplicates_and_gaps() -> None:
    sealer, opener = pair()
    frames = [sealer.seal(FrameKind.DATA, 2, bytes([n])) for n in range(4)]
    assert open_(opener, frames[0]) == b"\x00"
    assert open_(opener, frames[0]) is None
    assert open_(opener, frames[1]) == b"\x01"
    assert open_(opener, frames[0]) is None
    with pytest.raises(WireError, match="1 frames of channel 2"):
        open_(opener, frames[3])
    assert open_(opener, frames[2]) == b"\x02"


def test_channels_count_apart_and_no_nonce_repeats() -> None:
    sealer, opener = pair()
    headers = set()
    for count in range(3):
        for channel in range(CHANNELS):
            frame = sealer.seal(FrameKind.DATA, channel, b"x")
            parsed = parse_frame(frame)
            assert (parsed.channel, parsed.counter) == (channel, count)
            headers.add(parsed.header)
            assert open_(opener, frame) == b"x"
    assert len(headers) == 3 * CHANNELS


def test_directions_and_channels_have_different_keys() -> None:
    theirs = derive_frame_keys(CHAINING_KEY, HANDSHAKE_HASH, from_initiator=False)
    assert len({*keys(), *theirs}) == 2 * CHANNELS
    sealer, _ = pair()
    with pytest.raises(AuthError):
        open_(FrameOpener(theirs), sealer.seal(FrameKind.DATA, 0, b"reflected"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SFLF",
        bytes(24),
        pack_header(FrameKind.DATA, 1)[:23],
        b"SFLF\x02" + pack_header(FrameKind.DATA, 1)[5:],
        b"SFLF\x01\x09" + pack_header(FrameKind.DATA, 1)[6:],
        pack_header(FrameKind.DATA, 1)[:22] + b"\x05\x00",
        pack_header(FrameKind.DATA, 1)[:22] + b"\x00\x10",
        pack_header(FrameKind.HELLO, 1, 1),
        pack_header(FrameKind.DATA, 1) + bytes(MAX_FRAME_BYTES),
    ],
)
def test_bad_headers_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_frame(data)


@given(st.binary(max_size=200))
def test_random_bytes_raise_decode_errors_only(data: bytes) -> None:
    for candidate in (data, b"SFLF\x01" + data):
        try:
            parse_frame(candidate)
        except DecodeError:
            pass


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 700)), max_size=12))
def test_parts_join_in_order_however_channels_mix(messages: list[tuple[int, int]]) -> None:
    joiner = PartJoiner(max_bytes=1000)
    queued: list[list[tuple[bytes, bytes, bool]]] = [[] for _ in range(CHANNELS)]
    for number, (channel, length) in enumerate(messages):
        whole = bytes([number]) * length
        pieces = [whole[n : n + 100] for n in range(0, length, 100)]
        last = len(pieces) - 1
        queued[channel] += [(whole, p, n < last) for n, p in enumerate(pieces)]
    while any(queued):
        for channel in range(CHANNELS):
            if queued[channel]:
                whole, part, more = queued[channel].pop(0)
                assert joiner.add(channel, part, more=more) == (None if more else whole)


def test_join_limit() -> None:
    joiner = PartJoiner()
    part = bytes(PART_BYTES)
    for _ in range(512):
        assert joiner.add(4, part, more=True) is None
    with pytest.raises(DecodeError, match="67108864"):
        joiner.add(4, b"x", more=False)
    with pytest.raises(DecodeError, match="empty"):
        joiner.add(1, b"", more=True)
