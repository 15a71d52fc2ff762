"""Tokenizers made from metadata, against ids worked out by hand or by a plain merge loop."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer

from agent.models.tokenizer import build_tokenizer, tokenizer_config
from agent.models.toy import byte_symbols, vocabulary
from agent.models.vocabulary_source import read_vocabulary
from bus.errors import Invalid
from tests.harness.models import smollm2_folder, smollm2_gguf


def byte_level(pre: str, merges: list[str], **more: Any) -> dict[str, Any]:
    tokens = byte_symbols() + [merge.replace(" ", "") for merge in merges] + ["<|im_end|>", "<b>"]
    kinds = [1] * (len(tokens) - 2) + [3, 3]
    metadata = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
        "eos_token_id": len(tokens) - 2,
        "bos_token_id": len(tokens) - 1,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def made(metadata: dict[str, Any]) -> Tokenizer:
    return build_tokenizer(read_vocabulary(metadata))


DIGITS = ["1 2", "12 3", "123 4"]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("llama-bpe", ["<b>", "123", "4"]),
        ("gpt-2", ["1234"]),
    ],
)
def test_each_kind_cuts_numbers_its_own_way(pre: str, pieces: list[str]) -> None:
    assert made(byte_level(pre, DIGITS)).encode("1234").tokens == pieces


def test_an_unknown_cut_is_refused() -> None:
    with pytest.raises(Invalid, match="'kimi-k2' is not known"):
        made(byte_level("kimi-k2", []))


def test_a_file_without_tokenizer_is_refused() -> None:
    with pytest.raises(Invalid, match="no tokenizer"):
        read_vocabulary({})


def test_toy_ids_are_bytes_and_specials_are_whole() -> None:
    tokenizer = build_tokenizer(vocabulary())
    text = "Grüße, 12\n"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.encode("<|im_start|>a<|im_end|>").ids == [257, 97, 258]
    assert tokenizer.decode(list(text.encode())) == text


def sentence_piece(**more: Any) -> dict[str, Any]:
    normal = {"▁": -9.0, "a": -9.0, "b": -9.0, "ab": -1.0, "▁a": -2.0, "▁ab": -3.0, "bb": -0.5}
    specials = ["<unk>", "<s>", "</s>"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    metadata = {
        "model": "llama",
        "tokens": [*specials, *raw, *normal],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(normal),
        "scores": [0.0] * 259 + list(normal.values()),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def test_sentence_piece_merges_by_score() -> None:
    tokenizer = made(sentence_piece())
    # "ab" is likelier than "_a", and then "_" and "ab" make "_ab"
    assert tokenizer.encode("ab").tokens == ["<s>", "▁ab"]
    # "bb" is likelier than "ab", so "a" stays alone and joins the space
    assert tokenizer.encode("abb").tokens == ["<s>", "▁a", "bb"]
    assert tokenizer.encode("a é").tokens == ["<s>", "▁a", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab bé").ids) == "ab bé"


def test_sentence_piece_without_leading_space() -> None:
    tokenizer = made(sentence_piece(add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("ab").tokens == ["ab"]


def test_end_ids_are_the_union_of_metadata_and_known_texts() -> None:
    metadata = byte_level("gpt-2", [])
    metadata["tokenizer.ggml.eos_token_id"] = 5
    metadata["tokenizer.ggml.eot_token_id"] = 7
    assert read_vocabulary(metadata).eos_ids == (5, 7, 256)


def test_configuration_names_special_tokens_and_template() -> None:
    found = tokenizer_config(vocabulary(), 4096)
    assert found["eos_token"] == "<|im_end|>"
    assert found["model_max_length"] == 4096
    assert "bos_token" not in found
    assert found["chat_template"].startswith("{% for message")


def merge_plainly(piece: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """BPE as first described: join the pair of lowest rank until none is left.

    Source: Sennrich, Haddow and Birch, arXiv:1508.07909.
    """
    table = byte_symbols()
    parts = [table[byte] for byte in piece.encode()]
    while True:
        pairs = [(ranks.get(pair, 1 << 30), at) for at, pair in enumerate(pairwise(parts))]
        if not pairs or min(pairs)[0] == 1 << 30:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@cache
def smollm2_vocabulary() -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Ids of tokens and ranks of merges, from the file itself."""
    fields = gguf.GGUFReader(str(smollm2_gguf())).fields
    merges = [merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokens = fields["tokenizer.ggml.tokens"].contents()
    ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
    return {text: index for index, text in enumerate(tokens)}, ranks


@pytest.mark.model
@pytest.mark.parametrize(
    "pieces",
    [
        ["Hello", ",", " world", "!"],
        ["In", " ", "1", "9", "8", "4", " people", "'s", " rights", "\n", "\n", "Next"],
        ["def", " f", "(", "x", "):", "\n   ", " return", " x", "**", "2"],
        [" Größe", " und", " 東京", " 🙂", "…"],
    ],
)
def test_smollm2_ids_equal_a_plain_merge_of_hand_cut_text(pieces: list[str]) -> None:
    vocab, ranks = smollm2_vocabulary()
    expected = [vocab[part] for piece in pieces for part in merge_plainly(piece, ranks)]
    tokenizer = Tokenizer.from_file(str(smollm2_folder().tokenizer))
    assert tokenizer.encode("".join(pieces)).ids == expected
    assert tokenizer.decode(expected) == "".join(pieces)
