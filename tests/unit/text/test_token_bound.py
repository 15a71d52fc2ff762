"""Most bytes of a text that one token can stand for, against what tokenizers make of texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from agent.models.encoder_importer import import_encoder
from bus.text.token_bound import longest_token
from bus.text.tokenizer import TextModel
from bus.text.vocabulary import BYTE_OF_CHARACTER
from tests.harness.models import smollm2_folder, toy_model_folder
from tests.harness.small_encoder import write_small_encoder
from tests.harness.tokenizers import sentence_piece


def layout_of(tokenizer: Any) -> dict[str, Any]:
    layout: dict[str, Any] = json.loads(tokenizer.to_str())
    return layout


def byte_level(*without: int) -> Any:
    """Byte-level BPE with the one merge to `an`, but without some bytes."""
    kept = [c for c, byte in BYTE_OF_CHARACTER.items() if byte not in without]
    vocab = {piece: place for place, piece in enumerate([*kept, "an", "\u0120an"])}
    made: Any = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "n"), ("\u0120", "an")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def test_known_bounds() -> None:
    assert longest_token(layout_of(byte_level())) == 3
    # Bytes that no UTF-8 has need no piece.
    assert longest_token(layout_of(byte_level(0xC0, 0xFF))) == 3
    # The longest is the control token that may be written in a prompt.
    assert longest_token(layout_of(sentence_piece())) == len("<|im_start|>")
    assert longest_token(layout_of(sentence_piece(metaspace=True))) == len("<|im_start|>")
    assert TextModel.open(toy_model_folder().path).longest == len("<|endoftext|>")


def test_a_piece_is_as_long_as_it_is_written() -> None:
    layout = layout_of(sentence_piece())
    # It stands for eight spaces, and for itself where a text is written so.
    layout["model"]["vocab"]["\u2581" * 8] = 500
    assert longest_token(layout) == 24


DROPPING: dict[str, Callable[[Any], None]] = {
    "accents": lambda made: setattr(made, "normalizer", normalizers.BertNormalizer()),
    "joins": lambda made: setattr(made, "normalizer", normalizers.NFC()),
    "strips": lambda made: setattr(made, "normalizer", normalizers.Strip()),
    "lower": lambda made: setattr(made, "normalizer", normalizers.Lowercase()),
    "nested": lambda made: setattr(
        made, "normalizer", normalizers.Sequence([normalizers.Prepend("a"), normalizers.NFKC()])
    ),
    "replaces": lambda made: setattr(made, "normalizer", normalizers.Replace("ab", "")),
    "cuts": lambda made: setattr(
        made,
        "pre_tokenizer",
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(False)]
        ),
    ),
    "words": lambda made: setattr(
        made,
        "pre_tokenizer",
        pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(False)]),
    ),
    "added": lambda made: made.add_tokens([AddedToken("<x>", rstrip=True)]),
}


@pytest.mark.parametrize("how", DROPPING)
def test_there_is_none_where_characters_are_dropped_or_joined(how: str) -> None:
    made = byte_level()
    DROPPING[how](made)
    assert longest_token(layout_of(made)) == 0


def test_there_is_none_where_some_bytes_have_no_piece() -> None:
    made = byte_level(4)
    assert made.encode("\x04" * 1000).ids == []
    assert longest_token(layout_of(made)) == 0
    # A model that people run, and whose tokenizer has no piece for six control characters.
    smollm2 = TextModel.open(smollm2_folder().path)
    assert smollm2.encode("\x04" * 1000, add_special=False) == []
    assert smollm2.longest == 0
    layout = layout_of(sentence_piece())
    layout["model"]["byte_fallback"] = False
    assert longest_token(layout) == 0


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("x" * 101, 3),
        ("a" + " " * 1000 + "b", 4),
        ("a" + "\u0300" * 1000, 3),
        ("\0" * 1000 + "a", 3),
    ],
)
def test_there_is_none_for_word_pieces(tmp_path: Path, text: str, tokens: int) -> None:
    import_encoder(write_small_encoder(tmp_path / "source"), tmp_path / "small")
    model = TextModel.open(tmp_path / "small")
    assert len(model.encode_whole(text)) == tokens
    assert model.longest == 0


TOKENIZERS = [byte_level(), sentence_piece(), sentence_piece(metaspace=True)]
WRITTEN = st.text(st.sampled_from("an \u2581\u0300\u00e9hi<>/s|im_startd\0\x04\u4e2d\U0001f600"))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TOKENIZERS), WRITTEN | st.text())
def test_no_text_has_fewer_tokens(made: Any, text: str) -> None:
    longest = longest_token(layout_of(made))
    ids = made.encode(text, add_special_tokens=False).ids
    assert len(ids) * longest >= len(text.encode())
