"""Msgpack data under limits: which keys maps may have, and how many containers."""

from __future__ import annotations

import msgpack
import pytest

from bus.errors import DecodeError
from bus.unpacking import unpack


def test_whole_numbers_as_keys_become_their_text_where_they_are_taken() -> None:
    packed = msgpack.packb({1: "a", "b": {2: 3}})
    assert unpack(packed, max_bytes=100, number_keys=True) == {"1": "a", "b": {"2": 3}}
    with pytest.raises(DecodeError):
        unpack(packed, max_bytes=100)


@pytest.mark.parametrize("packed", [b"\x82\x01\x02\xa1\x31\x03", b"\x82\xa1\x61\x02\xa1\x61\x03"])
def test_a_key_that_comes_twice_is_an_error(packed: bytes) -> None:
    with pytest.raises(DecodeError, match="twice"):
        unpack(packed, max_bytes=100, number_keys=True)


@pytest.mark.parametrize("key", [b"\xc0", b"\xc3", b"\xcb" + bytes(8), b"\x90", b"\x80"])
def test_other_keys_are_errors(key: bytes) -> None:
    with pytest.raises(DecodeError):
        unpack(b"\x81" + key + b"\x01", max_bytes=100, number_keys=True)


def test_maps_with_number_keys_are_counted_too() -> None:
    bomb = b"\xdd" + (1 << 19).to_bytes(4, "big") + b"\x80" * (1 << 19)
    with pytest.raises(DecodeError, match="lists and maps"):
        unpack(bomb, max_bytes=1 << 21, number_keys=True)
