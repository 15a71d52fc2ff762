"""The id of a body that can not be read otherwise: its sender waits for an answer by it."""

from __future__ import annotations

import msgpack
import pytest

from bus.errors import DecodeError
from bus.messages.api import MARK, MAX_BODY_DEPTH, decode_body, id_of_unreadable

DEEP = b"\x91" * (MAX_BODY_DEPTH + 1) + b"\x01"


def body(*pairs: bytes) -> bytes:
    """A map of packed keys and values."""
    return bytes([0x80 | len(pairs) // 2]) + b"".join(pairs)


def pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


@pytest.mark.parametrize(
    "data",
    [
        body(pack("id"), pack(b"a"), pack("x"), DEEP),
        body(pack("x"), DEEP, pack("id"), pack(b"a")),
        body(pack("bias"), pack({1: 1.0, "1": 2.0}), pack("id"), pack(b"a")),
        body(pack("id"), pack(b"a"), pack("x"), b"\xc1"),
        body(pack("id"), pack(b"a"), pack(b"key"), pack(1)),
    ],
)
def test_the_id_is_found_whatever_else_is_wrong(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_body([MARK, data])
    assert id_of_unreadable([MARK, data]) == b"a"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pack([1, 2]),
        pack({"id": "text"}),
        pack({"id": b"a" * 65}),
        pack({"id": b""}),
        body(pack("id"), DEEP),
        b"\xdf\xff\xff\xff\xff" + pack("id"),
        b"\x91" * 100_000,
    ],
)
def test_no_id_is_made_up(data: bytes) -> None:
    assert id_of_unreadable([MARK, data]) is None
    assert id_of_unreadable([MARK]) is None
