"""Tokenizers against published ids, and SentencePiece against its algorithm as it is described.

Two sources: the test vectors of llama.cpp, and tests/vectors/tokenizer_ids.json, which is what
llama.cpp itself makes of further texts (tests/harness/second_tokenizer.py).
"""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from agent.models.gguf_header import read_header
from agent.models.text_cuts import CUTS
from agent.models.tokenizer import build_tokenizer
from agent.models.vocabulary_check import check_vocabulary
from agent.models.vocabulary_source import VocabularySource, read_vocabulary
from bus.errors import Invalid
from bus.text.detokenizer import Detokenizer
from bus.text.encodings import Encodings
from bus.text.escaping import Escaper
from bus.text.model_files import ModelFiles
from bus.text.tokenizer import TextModel
from tests.harness.models import gemma3_folder, gemma3_gguf
from tests.harness.vocabularies import cases, vocabularies

pytestmark = pytest.mark.model

#: Vocabularies, and how many texts of theirs have ids.
EQUAL = {
    **dict.fromkeys(("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2"), 46),
    **dict.fromkeys(("llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "refact"), 46),
    **dict.fromkeys(("starcoder", "bert-bge", "gemma-4"), 46),
    "qwen35": 50,
    "baichuan": 0,
}
REFUSED = {
    "aquila": "does not say how its tokenizer cuts text",
    "gpt-neox": "does not say how its tokenizer cuts text",
    "nomic-bert-moe": "tokenizer kind 't5'",
}
#: Texts of the second source where llama.cpp is not as the model was published: it takes vowels
#: of Korean syllables and spacing marks of Hindi for accents.
OTHERWISE = {"bert-bge": (6, 8)}
ONE_SPACE = ("baichuan", "gemma-4", "llama-spm", "phi-3")
#: Digests where llama.cpp has other bytes for some tokens: unused ones of BERT, emoji that are
#: written as they are, `<|EOT|>` and `</s>`.
DIGESTS = {
    "bert-bge": "48911a039ce5a79a",
    "command-r": "90b6a7efc8c526fb",
    "deepseek-coder": "6051212d01ef6f65",
    "qwen2": "e28394905ebc2e64",
    "qwen35": "e28394905ebc2e64",
}
SECOND: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "tokenizer_ids.json").read_text()
)


def vocabulary(name: str) -> VocabularySource:
    return read_vocabulary(read_header(vocabularies() / f"ggml-vocab-{name}.gguf").metadata)


def text_model(name: str, source: VocabularySource) -> TextModel:
    """As the text processes read an imported model."""
    return TextModel(
        ModelFiles(
            name=name,
            folder=Path(name),
            tokenizer=build_tokenizer(source).to_str(),
            named_tokens={},
            eos_ids=source.eos_ids,
            bos_id=source.bos_id,
            add_bos=source.add_bos,
            template=None,
        ),
        Encodings(),
    )


@pytest.fixture(scope="module", params=EQUAL)
def made(request: pytest.FixtureRequest) -> tuple[str, TextModel]:
    return request.param, text_model(request.param, vocabulary(request.param))


Made = tuple[str, TextModel]


def test_ids_equal_those_that_llama_cpp_expects(made: Made) -> None:
    name, model = made
    file = vocabularies() / f"ggml-vocab-{name}.gguf"
    found = list(cases(file)) if EQUAL[name] else []
    assert len(found) == EQUAL[name]
    for text, ids in found:
        assert model.encode(text, add_special=False) == ids, text


def test_ids_equal_those_that_llama_cpp_makes(made: Made) -> None:
    name, model = made
    second = SECOND["vocabularies"][name]
    for place, (text, ids) in enumerate(zip(SECOND["texts"], second["plain"], strict=True)):
        if place not in OTHERWISE.get(name, ()):
            assert model.encode(text, add_special=False) == ids, text


def test_control_tokens_in_text_are_text_unless_asked_for(made: Made) -> None:
    name, model = made
    escaper = Escaper(model.special_texts)
    for text, plain, whole in SECOND["vocabularies"][name]["marked"]:
        assert model.encode(text, add_special=False) == plain, text
        assert not set(plain) & {model.bos, *model.eos}
        # BOS once, where llama.cpp warns of two; and no `[SEP]` after what is no text for a vector
        twice = whole[:2] == [model.bos, model.bos]
        expected = whole[int(twice) : -1 if name == "bert-bge" else None]
        assert model.encode(text, add_special=True, parse_special=True) == expected, text
        # A rendered template is encoded in the stretches between its control tokens
        assert model.encode_rendered(text, escaper, add_special=True) == expected, text
        users = escaper.escape(text)
        assert model.encode_rendered(users, escaper, add_special=False) == plain, text


def test_texts_come_back(made: Made) -> None:
    name, model = made
    if name == "bert-bge":
        ids = model.encode("\u00dcnder  the [MASK]!", add_special=False)
        assert model.decode(ids, skip_special=True) == "under the [ mask ] !"
        return
    for text in SECOND["texts"]:
        if name == "falcon" and "\x0b" in text:
            continue  # It has no token for this byte
        back = model.decode(model.encode(text, add_special=False), skip_special=True)
        # SentencePiece has one character for a space and itself.
        assert back == (text.replace("\u2581", " ") if name in ONE_SPACE else text)


def test_long_runs_take_no_time(made: Made) -> None:
    """Linear time; an expression that tries each place anew would take an hour."""
    name, model = made
    for run in ("a", " ", "\n", "\u3000", "=", "\U0001f642", " \n", "x\u0301"):
        text = run * 20_000
        ids = model.encode(f"{text}1", add_special=False)
        assert name == "bert-bge" or model.decode(ids, skip_special=True) == f"{text}1"


def test_tokens_add_the_bytes_that_they_add_in_llama_cpp(made: Made) -> None:
    """By the digest, which nodes and heads of other versions compare, too."""
    name, model = made
    expected = DIGESTS.get(name, SECOND["vocabularies"][name]["digest"])
    assert f"{model.digest:016x}" == expected


def chunks(rng: random.Random, ids: list[int]) -> Iterator[list[int]]:
    begin = 0
    while begin < len(ids):
        end = begin + rng.randint(1, rng.choice((1, 2, 5)))
        yield ids[begin:end]
        begin = end


def test_t1_streams_equal_the_whole_however_they_are_cut(made: Made) -> None:
    name, model = made
    rng = random.Random(name)
    for text in SECOND["texts"]:
        ids = model.encode(text, add_special=False)
        whole = Detokenizer(model.vocabulary).push(ids)
        for _ in range(20):
            maker, given = Detokenizer(model.vocabulary), ""
            for chunk in chunks(rng, ids):
                piece = maker.push(chunk)
                assert "\ufffd" not in piece
                given += piece
                assert whole.startswith(given)
            assert given + maker.finish() == whole


def test_t1_streams_of_any_tokens_equal_the_whole(made: Made) -> None:
    """Also of those that make no text: halves of characters, in any order."""
    name, model = made
    rng = random.Random(name)
    known = range(len(model.vocabulary))
    rare = [token for token in known if b"\x80" <= model.vocabulary[token] <= b"\xff"] or known
    for _ in range(200):
        ids = [rng.choice(rng.choice((rare, known))) for _ in range(rng.randint(1, 40))]
        maker = Detokenizer(model.vocabulary)
        given = "".join(maker.push(chunk) for chunk in chunks(rng, ids)) + maker.finish()
        raw = b"".join(model.vocabulary[token] for token in ids)
        whole = codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
        assert given == whole
        # Only what the end cuts off is not there
        assert raw.decode("utf-8", "replace").startswith(whole)


@pytest.fixture(scope="module")
def lender() -> Tokenizer:
    return build_tokenizer(vocabulary("llama-bpe"))


@pytest.mark.parametrize("name", SECOND["cuts"])
def test_cuts_equal_llama_cpp_s_with_another_vocabulary(name: str, lender: Tokenizer) -> None:
    lender.pre_tokenizer = CUTS[name].pre_tokenizer()
    lender.model.ignore_merges = CUTS[name].whole_words
    for text, ids in zip(SECOND["cut_texts"], SECOND["cuts"][name], strict=True):
        assert lender.encode(text, add_special_tokens=False).ids == ids, text


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_name(name: str) -> None:
    with pytest.raises(Invalid, match=REFUSED[name]):
        check_vocabulary(vocabulary(name))


def test_no_vocabulary_is_left_out() -> None:
    names = {file.stem.removeprefix("ggml-vocab-") for file in vocabularies().glob("*.gguf")}
    assert names == {*EQUAL, *REFUSED}


def test_no_cut_is_left_out() -> None:
    compared = {CUTS[name].patterns for name in SECOND["cuts"]}
    assert {cut.patterns for cut in CUTS.values()} == compared


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
