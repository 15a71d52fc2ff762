"""What ids add to the text, against the tokenizers' own decoding and published tables."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ModelIncomplete
from bus.text.vocabulary import (
    BYTE_OF_CHARACTER,
    strips_first_space,
    tokenizer_digest,
    vocabulary_bytes,
)

BYTE_LEVEL = {"type": "ByteLevel"}
PIECES = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def test_the_byte_table_is_gpt2s() -> None:
    # Known entries: space is G with a dot, newline C with a dot, "A" itself, 0xAD the last one.
    assert len(BYTE_OF_CHARACTER) == 256
    assert sorted(BYTE_OF_CHARACTER.values()) == list(range(256))
    known = {"\u0120": 0x20, "\u010a": 0x0A, "A": 0x41, "\u0100": 0, "\u0143": 0xAD, "\u00e9": 0xE9}
    assert {character: BYTE_OF_CHARACTER[character] for character in known} == known


def test_byte_level_tokens() -> None:
    tokens = {"\u0120hi": 0, "\u00c3\u00a9": 1, "<|end|>": 2, "\u65e5": 4, "<think>": 5}
    added = {2: ("<|end|>", True), 5: ("<think>", False)}
    assert vocabulary_bytes(tokens, added, BYTE_LEVEL) == (
        b" hi",
        "\u00e9".encode(),
        b"",
        b"",
        "\u65e5".encode(),
        b"<think>",
    )


def test_sentence_piece_tokens() -> None:
    tokens = {"<0x0A>": 0, "\u2581a\u2581b": 1, "<0xE2>": 2, "</s>": 3, "x": 4}
    assert vocabulary_bytes(tokens, {3: ("</s>", True)}, PIECES) == (
        b"\n",
        b" a b",
        b"\xe2",
        b"",
        b"x",
    )


def test_the_metaspace_decoder_is_of_the_same_kind() -> None:
    found = vocabulary_bytes({"\u2581a": 0}, {}, {"type": "Metaspace", "replacement": "\u2581"})
    assert found == (b" a",)


def test_word_pieces_begin_a_word_or_go_on_with_one() -> None:
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    found = vocabulary_bytes(
        {"[CLS]": 0, "play": 1, "##ing": 2, "#": 3}, {0: ("[CLS]", True)}, decoder
    )
    assert found == (b"", b" play", b"ing", b" #")


@pytest.mark.parametrize("decoder", [None, {"type": "CTC"}])
def test_another_decoder_is_refused(decoder: object) -> None:
    with pytest.raises(ModelIncomplete, match="does not say what a token adds"):
        vocabulary_bytes({"a": 0}, {}, decoder)


@pytest.mark.parametrize(
    ("decoder", "strips"),
    [
        (PIECES, True),
        (BYTE_LEVEL, False),
        ({"type": "Metaspace", "prepend_scheme": "first"}, True),
        ({"type": "Metaspace", "prepend_scheme": "never"}, False),
        ({"type": "WordPiece", "prefix": "##"}, True),
        (None, False),
    ],
)
def test_who_drops_the_first_space(decoder: object, strips: bool) -> None:
    assert strips_first_space(decoder) is strips


def test_the_digest_by_its_definition() -> None:
    # Written out: size 2, length 1, "a", length 0.
    data = bytes.fromhex("02000000" + "01000000" + "61" + "00000000")
    expected = int.from_bytes(hashlib.sha256(data).digest()[:8], "little")
    assert tokenizer_digest((b"a", b"")) == expected
    assert tokenizer_digest((b"", b"a")) != expected


@given(st.lists(st.binary(max_size=4), max_size=5), st.lists(st.binary(max_size=4), max_size=5))
def test_different_vocabularies_have_different_digests(a: list[bytes], b: list[bytes]) -> None:
    assert (tokenizer_digest(a) == tokenizer_digest(b)) == (a == b)
    assert 1 <= tokenizer_digest(a) < 2**64


@pytest.mark.parametrize(
    ("tokens", "added", "said"),
    [
        ({"a": 0, "b": 1 << 31}, {}, "2147483649 ids and 2097152 is the most"),
        ({"a": 0, "x" * 5000: 1}, {}, "5000 bytes in one token and 4096 is the most"),
        ({"a": 0}, {1: ("x" * 5000, False)}, "5000 bytes in one token"),
        # A control token adds nothing, and it is told how it is written
        ({"a": 0}, {1: ("x" * 5000, True)}, "5000 bytes in one token"),
    ],
)
def test_what_no_head_takes_is_refused(
    tokens: dict[str, int], added: dict[int, tuple[str, bool]], said: str
) -> None:
    with pytest.raises(ModelIncomplete, match=rf"tokenizer\.json has {said}"):
        vocabulary_bytes(tokens, added, BYTE_LEVEL)


def test_the_longest_token_that_a_head_takes() -> None:
    assert vocabulary_bytes({"x" * 4096: 0}, {1: ("y" * 4096, True)}, BYTE_LEVEL) == (
        b"x" * 4096,
        b"",
    )
