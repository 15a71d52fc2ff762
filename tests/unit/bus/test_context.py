"""TokenContext: digest, segments and slices against values known from elsewhere."""

from __future__ import annotations

import struct
import subprocess

import pytest

from bus.context import EMPTY_DIGEST, TokenContext, context_digest
from bus.errors import Invalid
from bus.ids import pack_ids, unpack_ids
from bus.messages.parts import Segment


def test_the_empty_digest_is_the_one_of_blake2b_128() -> None:
    # b2sum -l 128 of an empty input.
    assert EMPTY_DIGEST.hex() == "cae66941d9efbd404e4d88758ea67670"
    assert TokenContext().digest() == EMPTY_DIGEST


def test_the_digest_is_over_u32_little_endian_ids() -> None:
    ids = [1, 258, 70_000]
    packed = bytes([1, 0, 0, 0, 2, 1, 0, 0, 0x70, 0x11, 1, 0])
    said = subprocess.run(
        ["b2sum", "-l", "128"], input=packed, capture_output=True, check=True
    ).stdout.split()[0]
    context = TokenContext()
    context.append(pack_ids(ids[:1]))
    context.append(pack_ids(ids[1:]))
    assert context.digest().hex() == said.decode()


def test_appending_in_parts_equals_appending_at_once() -> None:
    ids = list(range(100))
    parts, whole = TokenContext(), TokenContext()
    for low in range(0, 100, 7):
        parts.append(pack_ids(ids[low : low + 7]))
        parts.validate_state()
    whole.append(pack_ids(ids))
    assert parts.digest() == whole.digest() == context_digest(struct.pack("<100I", *ids))
    assert parts.segments == whole.segments == (Segment(tokens=100),)
    assert parts.matches(100, whole.digest())
    assert not parts.matches(99, whole.digest())
    assert not parts.matches(100, EMPTY_DIGEST)


def test_segments_keep_chunks_and_steps_apart_and_join_equals() -> None:
    context = TokenContext()
    context.append(pack_ids([1, 2, 3]))
    context.append(pack_ids([4]), [Segment(tokens=1, by_step=True)])
    context.append(pack_ids([5, 6, 7]), [Segment(tokens=1, by_step=True), Segment(tokens=2)])
    context.append(b"")
    context.validate_state()
    assert context.segments == (
        Segment(tokens=3),
        Segment(tokens=2, by_step=True),
        Segment(tokens=2),
    )
    assert len(context) == 7


def test_slices_carry_their_segments() -> None:
    context = TokenContext()
    context.append(pack_ids([1, 2, 3]))
    context.append(pack_ids([4, 5]), [Segment(tokens=2, by_step=True)])
    assert list(unpack_ids(context.slice(2, 4))) == [3, 4]
    assert context.slice_segments(2, 4) == (Segment(tokens=1), Segment(tokens=1, by_step=True))
    assert list(unpack_ids(context.slice(4))) == [5]
    assert context.slice_segments(4) == (Segment(tokens=1, by_step=True),)
    assert context.slice(5) == b""
    assert context.slice_segments(5) == ()


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    context = TokenContext()
    context.append(pack_ids([1]))
    with pytest.raises(Invalid, match="cover 3 tokens and 2 came"):
        context.append(pack_ids([2, 3]), [Segment(tokens=3)])
    with pytest.raises(Invalid, match="no packed token ids"):
        context.append(b"\x01\x02\x03")
    context.validate_state()
    assert list(unpack_ids(context.slice())) == [1]
