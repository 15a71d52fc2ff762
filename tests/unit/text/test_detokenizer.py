"""Streamed text equals the whole text, however the stream was cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.text.detokenizer import Detokenizer

#: Id n is byte n; 256 is a control token that has bytes.
BYTES = (*(bytes([n]) for n in range(256)), b"<end>")


def pushed(data: bytes) -> list[str]:
    maker = Detokenizer(BYTES, special=(256,))
    return [maker.push([byte]) for byte in data] + [maker.finish()]


def test_a_character_comes_when_it_is_complete() -> None:
    emoji, syllable = "\U0001f600", "\ud55c"
    assert pushed(emoji.encode()) == ["", "", "", emoji, ""]
    assert pushed(b"a" + syllable.encode()) == ["a", "", "", syllable, ""]


def test_t1_a_tail_that_was_cut_is_dropped() -> None:
    assert pushed("ok \U0001f600".encode()[:-1]) == ["o", "k", " ", "", "", "", ""]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        # The examples of Unicode 15.0, section 3.9: one U+FFFD for each maximal subpart.
        (
            b"\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64",
            "a\ufffd\ufffd\ufffdb\ufffdc\ufffd\ufffdd",
        ),
        (b"\xc0\xafA", "\ufffd\ufffdA"),
        (b"\xf4\x91\x92\x93\xffA", "\ufffd\ufffd\ufffd\ufffd\ufffdA"),
        (b"\xed\xa0\x80A", "\ufffd\ufffd\ufffdA"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, text: str) -> None:
    assert "".join(pushed(data)) == text


def test_control_tokens_and_unknown_ids_add_nothing() -> None:
    maker = Detokenizer(BYTES, special=(256,))
    assert maker.push([0x61, 256, 0x62, 999, 0x63]) == "abc"


@given(
    st.lists(st.one_of(st.text(max_size=4).map(str.encode), st.binary(max_size=4)), max_size=8),
    st.lists(st.integers(0, 40), max_size=8),
)
def test_t1_any_cuts_give_the_same_text(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    places = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    maker = Detokenizer(BYTES)
    whole = Detokenizer(BYTES)
    text = "".join(maker.push(data[a:b]) for a, b in pairwise(places)) + maker.finish()
    assert text == whole.push(data) + whole.finish()
    # What was streamed is a beginning of the text, so nothing of it ever changes.
    assert data.decode("utf-8", "replace").startswith(text)


@given(st.text(max_size=30))
def test_whole_text_comes_back(text: str) -> None:
    assert "".join(pushed(text.encode())) == text
