"""Tokenizers made from metadata, against ids worked out by hand or by a plain merge loop."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer

from agent.models.tokenizer import build_tokenizer, tokenizer_config
from agent.models.toy import byte_symbols, vocabulary
from agent.models.vocabulary_source import read_vocabulary
from bus.errors import Invalid
from bus.text.escaping import Escaper
from bus.text.tokenizer import TextModel
from tests.harness.models import smollm2_folder, smollm2_gguf
from tests.harness.tokenizers import SPACE, text_folder


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


def test_a_file_that_names_no_cut_is_refused() -> None:
    metadata = byte_level("gpt-2", [])
    del metadata["tokenizer.ggml.pre"]
    with pytest.raises(Invalid, match="does not say how its tokenizer cuts text"):
        made(metadata)


@pytest.mark.parametrize("kind", ["t5", "rwkv", "plamo2"])
def test_a_kind_that_is_not_known_is_refused(kind: str) -> None:
    with pytest.raises(Invalid, match=f"tokenizer kind '{kind}' can not be imported; .*choose"):
        made(byte_level("gpt-2", [], model=kind))


def test_end_tokens_that_a_user_could_write_are_control_tokens() -> None:
    metadata = byte_level("gpt-2", [])
    metadata["tokenizer.ggml.token_type"][256:] = [4, 4]
    tokenizer = made(metadata)
    tokenizer.encode_special_tokens = True
    assert tokenizer.encode("<|im_end|><b>").ids == list(b"<|im_end|><b>")
    tokenizer.encode_special_tokens = False
    assert tokenizer.encode("<|im_end|><b>").ids == [256, 257]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_end_tokens_that_a_file_calls_ordinary_are_control_tokens(
    kind: str, tmp_path: Path
) -> None:
    begin, end, turn = "<s>", "</s>", "<|eot_id|>"
    metadata = _ordinary_ends(kind, [begin, end, turn])
    source = read_vocabulary(metadata)
    ids = [source.tokens.index(text) for text in (begin, end, turn)]
    assert [source.kinds[token] for token in ids] == [3, 3, 3]
    assert set(source.eos_ids) == set(ids[1:])
    config = tokenizer_config(source, 64)
    folder = text_folder(tmp_path, build_tokenizer(source), config=config)
    model = TextModel.open(folder)
    for text in (begin, end, turn, f"a {end} b", f"{begin}x{turn}"):
        written = model.encode(text, add_special=False)
        assert not set(ids) & set(written)
        assert model.decode(written, skip_special=True) == text
        escaper = Escaper(model.special_texts)
        rendered = f"{begin}{escaper.escape(text)}{end}"
        found = model.encode_rendered(rendered, escaper, add_special=False)
        assert [token for token in found if token in ids] == ids[:2]
    assert model.encode(f"{begin}{end}{turn}", add_special=False, parse_special=True) == ids


def _ordinary_ends(kind: str, ends: list[str]) -> dict[str, Any]:
    """A vocabulary that calls its ends ordinary, and makes them of their letters."""
    steps = {"<s>": ["< s", "<s >"], "</s>": ["< /", "</ s", "</s >"]}
    steps["<|eot_id|>"] = ["< |", "| >", "<| e", "<|e o", "<|eo t", "<|eot _", "<|eot_ i"]
    steps["<|eot_id|>"] += ["<|eot_i d", "<|eot_id |>"]
    merges = list(dict.fromkeys(merge for text in ends for merge in steps[text]))
    made = [merge.replace(" ", "") for merge in merges]
    if kind == "gpt2":
        tokens, scores = [*byte_symbols(), *made], [0.0] * (256 + len(made))
        kinds = [1] * len(tokens)
    else:
        letters = [chr(code) for code in range(0x21, 0x7F)]
        pieces = [SPACE, *letters, *made]
        tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
        kinds = [2, *[6] * 256, *[1] * len(pieces)]
        scores = [0.0] * 257 + [-float(place) for place in range(len(pieces))]
    metadata = {
        "model": kind,
        "pre": "falcon" if kind == "gpt2" else "default",
        "tokens": tokens,
        "token_type": kinds,
        "scores": scores,
        "merges": merges if kind == "gpt2" else [],
        "bos_token_id": tokens.index(ends[0]),
        "eos_token_id": tokens.index(ends[1]),
        "unknown_token_id": 0,
        "add_space_prefix": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


@pytest.mark.parametrize("text", ["the", ",", "\u010a", "!", "a|b", "<", "[ab"])
def test_a_named_end_that_is_an_ordinary_word_stays_one(text: str) -> None:
    metadata = byte_level("gpt-2", [])
    metadata["tokenizer.ggml.tokens"].append(text)
    metadata["tokenizer.ggml.token_type"].append(1)
    metadata["tokenizer.ggml.bos_token_id"] = 258
    metadata["tokenizer.ggml.eos_token_id"] = 258
    assert read_vocabulary(metadata).kinds[258] == 1


def test_what_ends_a_message_within_a_turn_ends_no_answer() -> None:
    texts = ["<|end|>", "<|return|>", "<|call|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*byte_symbols(), *texts],
        "tokenizer.ggml.token_type": [1] * 256 + [3] * 3,
    }
    assert read_vocabulary(metadata).eos_ids == (257, 258)
    metadata["tokenizer.ggml.tokens"] = [*byte_symbols(), "<|end|>", "x", "y"]
    assert read_vocabulary(metadata).eos_ids == (256,)


def test_what_comes_after_a_text_that_is_encoded_whole() -> None:
    metadata = byte_level("gpt-2", [], add_bos_token=True, add_eos_token=True)
    assert made(metadata).encode("a").ids == [257, 97, 256]
    metadata = byte_level("gpt-2", [], add_eos_token=True)
    assert made(metadata).encode("a").ids == [97, 256]


@pytest.mark.parametrize(
    "text", ["<b:os>", "$$", "$A", "$B", "$A:1", "x:1", "::", "$0", "a:b:c", ""]
)
@pytest.mark.parametrize("at", ["bos", "eos"])
def test_a_begin_or_end_token_may_have_any_text(text: str, at: str) -> None:
    metadata = byte_level("gpt-2", [], **{f"{at}_token_id": 258, f"add_{at}_token": True})
    metadata["tokenizer.ggml.tokens"].append(text)
    metadata["tokenizer.ggml.token_type"].append(3)
    tokenizer = Tokenizer.from_str(made(metadata).to_str())
    plain = [*b"ab"]
    assert tokenizer.encode("ab").ids == ([258, *plain] if at == "bos" else [*plain, 258])
    pair = tokenizer.encode("ab", "c").ids
    assert [token for token in pair if token != 258] == [*plain, *b"c"]
    assert pair.count(258) == 2


def test_phi_3_s_control_tokens_take_spaces_along() -> None:
    metadata = byte_level("gpt-2", [])
    assert made(metadata).encode("<b> \na b").ids == [257, *b" \na b"]
    metadata["general.name"] = "Phi-3-mini"
    assert made(metadata).encode("<b> \na b").ids == [257, *b"a b"]


def word_pieces(**more: Any) -> dict[str, Any]:
    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "\u2581un",
        "able",
        "\u2581able",
        "\u2581!",
        "\u2581e",
    ]
    metadata = {
        "model": "bert",
        "tokens": tokens,
        "token_type": [3] * 4 + [1] * 5,
        "cls_token_id": 2,
        "seperator_token_id": 3,
        "unknown_token_id": 1,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def test_word_pieces_are_the_longest_that_fit() -> None:
    tokenizer = made(word_pieces())
    assert tokenizer.encode("UnAble able!").tokens == [
        *("[CLS]", "un", "##able", "able", "!", "[SEP]")
    ]
    assert tokenizer.encode("\u00c9 unx").tokens == ["[CLS]", "e", "[UNK]", "[SEP]"]
    assert tokenizer.decode([4, 5, 6, 7]) == "unable able!"


def test_word_pieces_keep_case_and_accents_where_the_file_says_so() -> None:
    tokenizer = made(word_pieces(**{"normalizer.lowercase": False}))
    assert tokenizer.encode("Un un \u00e9").tokens == ["[CLS]", "[UNK]", "un", "[UNK]", "[SEP]"]


def test_word_pieces_that_are_one_are_refused() -> None:
    tokens = word_pieces()["tokenizer.ggml.tokens"]
    with pytest.raises(Invalid, match="two tokens have one text"):
        made(word_pieces(tokens=[*tokens[:4], "\u2581[a]", "[a]", *tokens[6:]]))


def test_characters_are_merged_by_rank_and_others_are_bytes() -> None:
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<bos>", *raw, "\u2581", "a", "b", "ab", "\u2581ab", "\n", "\n\n"]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3] + [6] * 256 + [1] * 7,
        "tokenizer.ggml.merges": ["a b", "\u2581 ab", "\n \n"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    tokenizer = made(metadata)
    assert tokenizer.encode("ab ab\n\n\u00e9").tokens == [
        *("<bos>", "ab", "\u2581ab", "\n\n", "<0xC3>", "<0xA9>")
    ]
    assert tokenizer.decode(tokenizer.encode("ab ab\n\n\u00e9").ids) == "ab ab\n\n\u00e9"


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
