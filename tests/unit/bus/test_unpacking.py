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


@pytest.mark.parametrize(
    ("packed", "param", "says"),
    [
        # {"logit_bias": {65: 1, "65": 2}}, and with a float as the key.
        (b"\x81\xaalogit_bias\x82\x41\x01\xa265\x02", "logit_bias", "has the key '65' twice"),
        (b"\x81\xaalogit_bias\x81\xca\x42\x82\0\0\x01", "logit_bias", "has a float as a key"),
        # {"a": [0, {"b": {"c": 1, "c": 2}}], "d": {"e": 1, "e": 1}}: the first of two.
        (
            b"\x82\xa1a\x92\0\x81\xa1b\x82\xa1c\x01\xa1c\x02\xa1d\x82\xa1e\x01\xa1e\x01",
            "a[1].b",
            "has the key 'c' twice",
        ),
        (b"\x82\xa1a\x02\xa1a\x03", "a", "a map has the key 'a' twice"),
        (b"\x82\xc4\x01a\x02\xc4\x01a\x03", None, "a map has the key b'a' twice"),
        (b"\x92\x01\x81\xc0\x01", "[1]", "[1] has nothing as a key"),
    ],
)
def test_a_wrong_key_is_named_by_its_place(packed: bytes, param: str | None, says: str) -> None:
    with pytest.raises(DecodeError) as caught:
        unpack(packed, max_bytes=100, number_keys=True)
    assert caught.value.param == param
    assert says in caught.value.message


def test_the_place_of_a_wrong_key_is_not_searched_for_long() -> None:
    packed = b"\xdd" + (60_001).to_bytes(4, "big") + b"\x80" * 60_000 + b"\x82\x01\x01\xa11\x01"
    with pytest.raises(DecodeError, match=r"a map has the key '1' twice") as caught:
        unpack(packed, max_bytes=1 << 20, number_keys=True)
    assert caught.value.param is None


def test_maps_with_number_keys_are_counted_too() -> None:
    bomb = b"\xdd" + (1 << 19).to_bytes(4, "big") + b"\x80" * (1 << 19)
    with pytest.raises(DecodeError, match="lists and maps"):
        unpack(bomb, max_bytes=1 << 21, number_keys=True)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"messages": [{"content": "a"}, {"content": ["b", "c\ud800"]}]}, "messages[1].content[1]"),
        ({"a": {"\udc00": 1}}, "a"),
        ({"\n": "\ud800"}, "\\n"),
        ("\ud800", None),
        ([0] * 60_000 + ["\ud800"], None),
        ([[]] * 60_000 + ["\ud800"], None),
    ],
)
def test_a_text_that_is_no_utf_8_is_named_where_that_is_no_long_search(
    values: object, place: str | None
) -> None:
    packed = msgpack.packb(values, unicode_errors="surrogatepass")
    with pytest.raises(DecodeError, match="is no whole Unicode text") as caught:
        unpack(packed, max_bytes=1 << 20, number_keys=True)
    assert caught.value.param == place
    assert caught.value.message.startswith(place or "a text")
    assert caught.value.message.isprintable()


def test_what_is_wrong_in_other_ways_too_is_an_error_all_the_same() -> None:
    for packed in (b"\x92\xa1\xff", b"\x81\xa1\xff\x81\x90\x01", b"\x92\xa1\xff\xc7\xff\x01"):
        with pytest.raises(DecodeError):
            unpack(packed, max_bytes=100, number_keys=True)
