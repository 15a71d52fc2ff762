"""Tokenizers that the package can not use: a typed error that names the model, and life goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from bus.errors import ModelIncomplete, TokenizerUnavailable
from bus.messages.sampling import Constraint
from bus.messages.text import TEXT, CheckConstraint, Encode, EncodeTexts, TextFailed
from bus.text.library import LibraryTokenizer
from bus.text.process import answer
from head.text.jobs import TextJobs
from tests.harness.tokenizers import sentence_piece

#: A template for one text that asks for the second one, which there is not.
SECOND_TEXT = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "B", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {},
}
#: Tries for longer than the package lets it, at a text of many equal letters.
LONG_SEARCH = {
    "type": "Split",
    "pattern": {"Regex": "(a|a)*$|(a*)*b"},
    "behavior": "Isolated",
    "invert": False,
}
LONG = "a" * 40 + "c"


def changed(**parts: Any) -> str:
    return json.dumps({**json.loads(sentence_piece().to_str()), **parts})


def word_level() -> str:
    """Knows one word, and has no token for others."""
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    return changed(model=model, normalizer=None, pre_tokenizer=None, added_tokens=[])


def test_a_panic_is_an_error_that_names_the_model() -> None:
    tokenizer = LibraryTokenizer(changed(post_processor=SECOND_TEXT), "odd")
    for _ in range(2):
        with pytest.raises(TokenizerUnavailable) as caught:
            tokenizer.encode("hi there", parse_special=False, add_special_tokens=True)
        assert "the tokenizer of model odd fails on this text" in caught.value.message
        assert "it panicked" in caught.value.message


def test_what_panics_at_one_text_takes_the_next_one() -> None:
    text = changed(pre_tokenizer=LONG_SEARCH)
    tokenizer = LibraryTokenizer(text, "odd")
    with pytest.raises(TokenizerUnavailable):
        tokenizer.encode(LONG, parse_special=False)
    expected = Tokenizer.from_str(text).encode("hi", add_special_tokens=False).ids
    assert tokenizer.encode("hi", parse_special=False).ids == expected
    assert tokenizer.token_id("<s>") == 1


def test_what_the_package_refuses_is_told() -> None:
    tokenizer = LibraryTokenizer(word_level(), "words")
    assert tokenizer.encode("a", parse_special=False).ids == [0]
    with pytest.raises(TokenizerUnavailable, match=r"model words fails .*\[UNK\]"):
        tokenizer.encode("b", parse_special=False)


def test_what_is_no_tokenizer_is_an_incomplete_model() -> None:
    for text in ("{}", "[" * 100_000, ""):
        with pytest.raises(ModelIncomplete, match="the tokenizer of model m can not be read"):
            LibraryTokenizer(text, "m")


def test_other_faults_are_not_taken_for_the_package_s() -> None:
    tokenizer = LibraryTokenizer(sentence_piece().to_str(), "m")
    with pytest.raises(TypeError):
        tokenizer.encode(5, parse_special=False)  # type: ignore[arg-type]


def test_a_text_process_answers_the_job_and_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(changed(pre_tokenizer=LONG_SEARCH))
    handlers = TextJobs().handlers()
    failed = answer(handlers, EncodeTexts(job=1, folder=str(folder), texts=(LONG,)))
    assert isinstance(failed, TextFailed)
    assert (failed.job, failed.code) == (1, "tokenizer_unavailable")
    assert "the tokenizer of model odd fails on this text" in failed.message
    encoded = answer(handlers, Encode(job=2, folder=str(folder), text="hi", add_special=False))
    assert not isinstance(encoded, TextFailed)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "superfluid.json", "config.json"]
)
def test_files_that_nest_deeply_are_an_incomplete_model(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(sentence_piece().to_str())
    (folder / name).write_text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")
    failed = answer(TextJobs().handlers(), Encode(job=1, folder=str(folder), text="hi"))
    assert isinstance(failed, TextFailed)
    assert failed.code == "model_incomplete"


def test_a_panic_of_the_constraint_engine_ends_no_text_process(tmp_path: Path) -> None:
    """It takes each token of this kind for a byte, and this one's number is none."""
    layout = json.loads(sentence_piece().to_str())
    vocabulary = layout["model"]["vocab"]
    for text in (*(f"<0x{byte:02X}>" for byte in range(256)), "<0xZZ>"):
        vocabulary.setdefault(text, len(vocabulary))
    layout["model"]["byte_fallback"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(layout))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    handlers = TextJobs().handlers()
    for job in (1, 3):
        asked = CheckConstraint(
            job=job, folder=str(tmp_path), constraint=Constraint(kind="regex", source="a+")
        )
        failed = answer(handlers, asked)
        assert isinstance(failed, TextFailed)
        assert failed.code == "model_incomplete"
        assert "can not be used for constraints: the engine panics" in failed.message
        encoded = answer(handlers, Encode(job=job + 1, folder=str(tmp_path), text="a"))
        assert not isinstance(encoded, TextFailed)


@pytest.mark.parametrize("message", ["\ud800" * 2000, "\U0001f600" * 2000])
def test_whatever_a_message_quotes_it_can_be_sent(message: str) -> None:
    def refuse(job: object) -> object:
        raise TokenizerUnavailable(message)

    failed = answer({Encode: refuse}, Encode(job=1, folder="", text="hi"))
    assert TEXT.decode(TEXT.encode(failed)) == failed
