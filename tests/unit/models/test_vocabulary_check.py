"""Vocabularies that would take too much work, or lose or miscut text, are refused by their key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from agent.models.examine import examine
from agent.models.importer import import_gguf
from agent.models.tokenizer import build_tokenizer
from agent.models.toy import byte_symbols, vocabulary
from agent.models.vocabulary_check import (
    MAX_CHARACTERS,
    MAX_PAIR_CHARACTERS,
    MAX_TOKEN_CHARACTERS,
    MAX_TOKENS,
    check_vocabulary,
)
from agent.models.vocabulary_source import read_vocabulary
from bus.errors import Invalid
from bus.messages.text import MAX_TOKEN_BYTES
from bus.text.model_files import ModelFiles
from bus.text.tokenizer import TextModel
from tests.harness.gguf_models import SmallModel, write_all, write_model

RAW = [f"<0x{byte:02X}>" for byte in range(256)]
NAN = float("nan")


def metadata(**found: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in found.items()}


def sentence_piece(*more: str, **other: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *RAW, "a", "b", "ab", *more]
    found = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3] + [6] * 256 + [1] * (3 + len(more)),
        "scores": [-float(index) for index in range(len(tokens))],
    }
    return metadata(**found | other)


def byte_level(*more: str, merges: tuple[str, ...] = (), **other: Any) -> dict[str, Any]:
    tokens = [*byte_symbols(), *more]
    found = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * len(tokens),
        "merges": list(merges),
    }
    return metadata(**found | other)


def characters(*tokens: str, **other: Any) -> dict[str, Any]:
    found = {
        "model": "gemma4",
        "tokens": list(tokens),
        "token_type": [6 if text in RAW else 1 for text in tokens],
        "merges": [],
    }
    return metadata(**found | other)


def word_pieces(unknown: str, unknown_type: int) -> dict[str, Any]:
    return metadata(
        model="bert",
        tokens=[unknown, "[CLS]", "[SEP]", "\u2581a"],
        token_type=[unknown_type, 3, 3, 1],
        unknown_token_id=0,
        cls_token_id=1,
        seperator_token_id=2,
    )


def refusal(found: dict[str, Any]) -> tuple[str, str]:
    """The key and the sentence; building one refuses it in the same way."""
    source = read_vocabulary(found)
    with pytest.raises(Invalid) as checked:
        check_vocabulary(source)
    with pytest.raises(Invalid) as built:
        build_tokenizer(source)
    assert built.value.message == checked.value.message
    assert checked.value.message.count(". ") == 0
    return str(checked.value.param).removeprefix("tokenizer.ggml."), checked.value.message


def is_taken(found: dict[str, Any]) -> None:
    build_tokenizer(read_vocabulary(found))


@pytest.mark.parametrize("kind", [sentence_piece, byte_level])
def test_a_token_of_any_length_is_refused_before_any_work(kind: Any) -> None:
    is_taken(sentence_piece("a" * MAX_TOKEN_CHARACTERS))
    key, said = refusal(kind("a" * 4_000_000))
    assert key == "tokens"
    assert "has a token of 4000000 characters and 1000 is the most" in said


def test_a_chain_of_long_tokens_is_refused_before_any_work() -> None:
    # 999 tokens that are of each other: the squares of 2 to 1,000 come to 334 million
    key, said = refusal(sentence_piece(*("c" * length for length in range(2, 1001))))
    assert (key, "and 67108864 is the most" in said) == ("tokens", True)
    assert sum(length**2 for length in range(2, 1001)) > MAX_PAIR_CHARACTERS


def test_so_are_more_characters_than_any_vocabulary_has() -> None:
    count = MAX_CHARACTERS // 1000 + 1
    key, said = refusal(byte_level(*(f"{number:01000d}" for number in range(count))))
    assert (key, "and 8388608 is the most" in said) == ("tokens", True)


def test_so_are_more_tokens() -> None:
    key, said = refusal(byte_level(*(f"{number:x}/" for number in range(MAX_TOKENS))))
    assert (key, "has 1048832 tokens and 1048576 is the most" in said) == ("tokens", True)


@pytest.mark.parametrize("kind", [1, 4])
@pytest.mark.parametrize("mark", ["\u2581", ""])
def test_what_the_longest_token_adds_can_be_told(mark: str, kind: int) -> None:
    """In WordPiece's way, which puts a space before it."""
    text = mark + "\U0001f642" * (MAX_TOKEN_CHARACTERS - len(mark))
    found = word_pieces("[UNK]", 3)
    found["tokenizer.ggml.tokens"].append(text)
    found["tokenizer.ggml.token_type"].append(kind)
    model = TextModel(
        ModelFiles(
            name="m",
            folder=Path("m"),
            tokenizer=build_tokenizer(read_vocabulary(found)).to_str(),
            named_tokens={},
            eos_ids=(),
            bos_id=None,
            add_bos=False,
            template=None,
        )
    )
    assert 4 * 999 <= len(model.vocabulary[4]) <= MAX_TOKEN_BYTES


def test_a_vocabulary_without_its_merges_is_refused() -> None:
    key, said = refusal(byte_level("ab", "the"))
    assert key == "merges"
    assert "makes 0 of the 2 tokens of several characters" in said
    refusal(byte_level("th", "the", "them", merges=("t h",)))
    is_taken(byte_level("th", "the", merges=("t h",)))
    # One token a byte needs none
    check_vocabulary(vocabulary())
    assert refusal(characters(*RAW, "a", "b", "ab"))[0] == "merges"
    is_taken(characters(*RAW, "a", "b", "ab", merges=["a b"]))


@pytest.mark.parametrize("byte", [*b" a\n\t~", 0x80, 0xBF, 0xC2, 0xE2, 0xF0])
def test_a_byte_that_text_has_must_have_a_token(byte: int) -> None:
    symbols = byte_symbols()
    symbols[byte] = "<other>"
    found = byte_level(
        tokens=symbols, token_type=[3 if text == "<other>" else 1 for text in symbols]
    )
    key, said = refusal(found)
    assert key == "tokens"
    assert f"no token for the byte 0x{byte:02X}" in said


def test_a_byte_whose_token_adds_no_text_has_none() -> None:
    kinds = [1] * 256
    kinds[ord("e")] = 3
    assert "no token for the byte 0x65" in refusal(byte_level(token_type=kinds))[1]


def test_bytes_that_real_vocabularies_lack_may_lack() -> None:
    # Falcon's and SmolLM2's; c0, c1 and all from f5 on are in no UTF-8
    lacking = {0x03, 0x04, 0x0B, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}
    tokens = [text for byte, text in enumerate(byte_symbols()) if byte not in lacking]
    is_taken(byte_level(tokens=tokens, token_type=[1] * len(tokens)))


def test_characters_need_bytes_or_a_token_for_the_unknown() -> None:
    key, said = refusal(characters("a", *RAW[1:]))
    assert key == "tokens"
    assert "has no <0x00> and tokenizer.ggml.unknown_token_id names no token" in said
    # A letter stands for nothing else
    assert refusal(characters("a", "b", unknown_token_id=0))[0] == "tokens"
    is_taken(characters("a", "b", "<unk>", token_type=[1, 1, 2], unknown_token_id=2))
    found = sentence_piece(tokens=["a", "b"], token_type=[1, 1], scores=[0.0, -1.0])
    assert refusal(found)[0] == "tokens"


def test_words_need_a_token_for_the_unknown() -> None:
    is_taken(word_pieces("[UNK]", 1))
    is_taken(word_pieces("other", 3))
    assert refusal(word_pieces("\u2581b", 1))[0] == "unknown_token_id"


@pytest.mark.parametrize("odd", [NAN, float("inf"), float("-inf")])
def test_a_score_must_be_a_number(odd: float) -> None:
    scores = [0.0] * 261 + [odd]
    key, said = refusal(sentence_piece(scores=scores))
    assert (key, "a score that is no number" in said) == ("scores", True)


def test_scores_must_order_the_merges() -> None:
    # As some converters wrote them, in the place of what they did not have
    found = sentence_piece("ba", "aa", scores=[-1000.0] * 264)
    assert refusal(found)[0] == "scores"


@pytest.mark.parametrize("odd", [99, 0, -1, 7])
@pytest.mark.parametrize("kind", [sentence_piece, byte_level])
def test_types_that_do_not_exist_are_refused(kind: Any, odd: int) -> None:
    found = kind()
    found["tokenizer.ggml.token_type"][-1] = odd
    key, said = refusal(found)
    assert key == "token_type"
    assert f"has the type {odd}, and 1 to 6 are all there are" in said


@pytest.mark.parametrize("kind", [3, 4, 5, 6])
def test_some_token_must_be_ordinary_text(kind: int) -> None:
    assert refusal(sentence_piece(token_type=[kind] * 262))[0] == "token_type"


def test_no_token_may_lie_beyond_the_embedding(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", SmallModel(layers=1))
    rows = len(vocabulary().tokens)
    raw = file.read_bytes()
    assert raw.count(rows.to_bytes(8, "little")) == 3  # tokens, their types, the embedding's rows
    # One row fewer, and the model ends earlier
    at = raw.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 8
    file.write_bytes(raw[:at] + (rows - 1).to_bytes(8, "little") + raw[at + 8 :])
    said = "tokenizer.ggml.tokens has 260 tokens and the model knows 259; choose another file"
    assert [reason for reason in examine(file)["reasons"] if reason.startswith(said)]
    with pytest.raises(Invalid, match=said):
        import_gguf(file, tmp_path / "m")
    assert not (tmp_path / "m").exists()
    check_vocabulary(vocabulary(), rows)
    check_vocabulary(vocabulary(), rows + 4)


def test_model_check_says_it(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*byte_symbols(), "the"])
    writer.add_token_types([1] * 257)
    write_all(writer)
    found = examine(file)
    assert found["usable"] is False
    (said,) = [reason for reason in found["reasons"] if "tokenizer" in reason]
    assert said.startswith("tokenizer.ggml.merges makes 0 of the 1 tokens of several characters")
