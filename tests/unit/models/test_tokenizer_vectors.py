"""Tokenizers against published ids, and SentencePiece against its algorithm as it is described."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from tokenizers import Tokenizer

from agent.models.gguf_header import read_header
from agent.models.tokenizer import VocabularySource, build_tokenizer, read_vocabulary
from bus.errors import Invalid
from tests.harness.models import gemma3_folder, gemma3_gguf
from tests.harness.vocabularies import cases, vocabularies

pytestmark = pytest.mark.model

EQUAL = (
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
)
REFUSED = {
    "aquila": "tokenizer cut 'default'",
    "bert-bge": "tokenizer kind 'bert'",
    "gemma-4": "tokenizer kind 'gemma4'",
    "gpt-neox": "tokenizer cut 'default'",
    "nomic-bert-moe": "tokenizer kind 't5'",
}


def vocabulary(name: str) -> VocabularySource:
    return read_vocabulary(read_header(vocabularies() / f"ggml-vocab-{name}.gguf").metadata)


@pytest.mark.parametrize("name", EQUAL)
def test_ids_equal_those_that_llama_cpp_expects(name: str) -> None:
    tokenizer = build_tokenizer(vocabulary(name))
    found = list(cases(vocabularies() / f"ggml-vocab-{name}.gguf"))
    assert len(found) >= 46
    for text, ids in found:
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_name(name: str) -> None:
    with pytest.raises(Invalid, match=REFUSED[name]):
        build_tokenizer(vocabulary(name))


def test_no_vocabulary_is_left_out() -> None:
    names = {file.stem.removeprefix("ggml-vocab-") for file in vocabularies().glob("*.gguf")}
    assert names == {*EQUAL, *REFUSED, "baichuan"}  # the last has no expected ids


@cache
def gemma() -> tuple[dict[str, int], list[float]]:
    source = read_vocabulary(read_header(gemma3_gguf()).metadata)
    return {text: token for token, text in enumerate(source.tokens)}, list(source.scores)


def merge_by_score(text: str) -> list[int]:
    """Join the neighbours that make the likeliest token, the leftmost first, until none is left.

    Source: Kudo and Richardson, "SentencePiece" (arXiv:1808.06226), section 3.2.
    """
    vocab, scores = gemma()
    parts = list(text.replace(" ", "\u2581"))
    while True:
        joined = [
            (-scores[vocab[left + right]], at)
            for at, (left, right) in enumerate(pairwise(parts))
            if left + right in vocab
        ]
        if not joined:
            break
        _, at = min(joined)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids = []
    for part in parts:
        whole = vocab.get(part)
        as_bytes = [vocab[f"<0x{byte:02X}>"] for byte in part.encode()]
        ids += as_bytes if whole is None else [whole]
    return ids


@pytest.mark.parametrize(
    "text",
    [
        "Hello world",
        "The rivers, which once shaped cities, are parks today.",
        "Größe und Maß, naïve café, Ελλάδα, Москва",
        "東京の天気は晴れです。 서울의 날씨",
        "x = [i**2 for i in range(10) if i % 3 == 0]",
        "1984 3.14159 0xFF",
        "🦙 \U0001f9a9 \u0cd6\u0e7f",
        "antidisestablishmentarianism and floccinaucinihilipilification",
    ],
)
def test_gemma_merges_by_score(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(gemma3_folder().tokenizer))
    assert tokenizer.encode(text, add_special_tokens=False).ids == merge_by_score(text)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
