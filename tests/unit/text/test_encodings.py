"""Encoded texts that are kept: the same ids as the tokenizer's own, each text once, bounded."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from bus.text.encodings import ENTRY_IDS, Encodings
from bus.text.escaping import Escaper
from bus.text.token_texts import token_pattern
from bus.text.tokenizer import TextModel
from tests.harness.models import gemma3_folder, smollm2_folder, toy_model_folder
from tests.harness.tokenizers import sentence_piece, text_folder

# --- what is kept -----------------------------------------------------------------------------


class Counting:
    """Encodes to the text's code points, and counts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.texts.append(text)
        return [ord(character) for character in text]


def test_a_text_is_encoded_once_for_each_way() -> None:
    kept, encode = Encodings(), Counting()
    assert list(kept.encode(b"a", "h\u00e9", encode)) == [104, 0xE9]
    assert list(kept.encode(b"a", "h\u00e9", encode)) == [104, 0xE9]
    assert list(kept.encode(b"b", "h\u00e9", encode)) == [104, 0xE9]
    assert encode.texts == ["h\u00e9", "h\u00e9"]
    assert kept.take_fresh() == 6
    assert kept.take_fresh() == 0


def test_the_least_recently_used_go_down_to_half() -> None:
    # Ten texts of ten ids each fill it; the eleventh lets the oldest six go.
    kept, encode = Encodings(10 * (10 + ENTRY_IDS)), Counting()
    texts = [f"{number:010}" for number in range(11)]
    for text in texts[:10]:
        kept.encode(b"", text, encode)
    kept.encode(b"", texts[0], encode)
    assert len(encode.texts) == 10
    kept.encode(b"", texts[10], encode)
    assert len(kept) == 5
    for text in (texts[0], texts[10], *texts[7:10]):
        kept.encode(b"", text, encode)
    assert len(encode.texts) == 11
    kept.encode(b"", texts[1], encode)
    assert len(encode.texts) == 12


def test_a_text_of_more_than_half_of_it_lets_nothing_go() -> None:
    kept, encode = Encodings(1000), Counting()
    kept.encode(b"", "small", encode)
    kept.encode(b"", "x" * 900, encode)
    kept.encode(b"", "small", encode)
    assert [len(text) for text in encode.texts] == [5, 900]
    assert len(kept) == 1


# --- where texts are cut ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "text", "found"),
    [
        (["a", "ab", "abc"], "abd abc a", ["ab", "abc", "a"]),
        (
            ["<tool", "<tool_call>", "<t"],
            "<tool_cal <tool_call> <t",
            ["<tool", "<tool_call>", "<t"],
        ),
        (["b", "abx", "bcd"], "abcd", ["bcd"]),
        (["a.b", "a+"], "aab a.b a+", ["a.b", "a+"]),
        ([], "anything", []),
    ],
)
def test_the_leftmost_and_longest_is_found(texts: list[str], text: str, found: list[str]) -> None:
    assert token_pattern(texts).findall(text) == found


@given(st.lists(st.text("ab<", min_size=1, max_size=5), max_size=8), st.text("ab<", max_size=30))
@settings(max_examples=200)
def test_it_finds_what_trying_each_text_finds(texts: list[str], text: str) -> None:
    expected, place = [], 0
    while place < len(text):
        here = max((one for one in texts if text.startswith(one, place)), key=len, default="")
        if here:
            expected.append(here)
        place += len(here) or 1
    assert token_pattern(texts).findall(text) == expected


# --- rendered texts ---------------------------------------------------------------------------


def with_tool_tokens() -> Any:
    """Control tokens, and added ones that are none, one the beginning of the other."""
    made = sentence_piece()
    made.add_tokens([AddedToken(text, normalized=False) for text in ("<tool", "<tool_call>")])
    made.add_special_tokens([AddedToken("<tool_ca", normalized=False)])
    return made


def taking_space_along() -> Any:
    made = sentence_piece()
    made.add_special_tokens([AddedToken("<mask>", normalized=False, lstrip=True)])
    return made


FOLDERS: list[Callable[[Path], Path]] = [
    lambda _: toy_model_folder().path,
    lambda path: text_folder(path, sentence_piece()),
    lambda path: text_folder(path, sentence_piece(metaspace=True)),
    lambda path: text_folder(path, with_tool_tokens()),
    lambda path: text_folder(path, taking_space_along()),
]
REAL = [lambda _: smollm2_folder().path, lambda _: gemma3_folder().path]


def _check(folder: Path, seed: int, times: int) -> None:
    """Texts of tokens and odd parts have the ids that the tokenizer gives the whole text."""
    plain, keeping = TextModel.open(folder), TextModel.open(folder, Encodings())
    draw = random.Random(seed)
    words = ["hi", " ", "\n", "\n\n", "  ", "<", "|", "tool", "_call>", "t\u00e9", "\U0001f600"]
    parts = [*plain.special_texts[:8], *plain.special_texts[-2:], "<tool_call>", "<tool", *words]
    # Nothing is escaped with it, so it stays as it is.
    unused = Escaper(keeping.special_texts)
    for _ in range(times):
        text = "".join(draw.choices(parts, k=draw.randint(0, 12)))
        expected = plain.encode(text, add_special=True, parse_special=True)
        for _ in range(2):
            found = keeping.encode_rendered(text, unused, add_special=True)
            assert found == expected, text


@pytest.mark.parametrize("make", FOLDERS)
def test_ids_are_those_of_the_whole_text(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    _check(make(tmp_path / "m"), seed=1, times=300)


@pytest.mark.model
@pytest.mark.parametrize("make", REAL)
def test_ids_of_real_models_are_those_of_the_whole_text(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    _check(make(tmp_path), seed=2, times=200)
