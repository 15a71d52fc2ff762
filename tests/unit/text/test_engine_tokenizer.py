"""Texts of control tokens in constraints are spelled, and no control token ends the answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models

from bus.errors import ConstraintInvalid
from bus.messages.sampling import Constraint
from bus.text.constraints import check_constraint, make_matcher, make_tokenizer
from bus.text.engine_tokenizer import without_added_texts
from bus.text.model_files import ModelFiles
from bus.text.tokenizer import TextModel
from tests.harness.models import smollm2_folder, toy_model_folder
from tests.harness.tokenizers import sentence_piece


def text_model(tokenizer: Any, eos_ids: tuple[int, ...]) -> TextModel:
    return TextModel(
        ModelFiles(
            name="made",
            folder=Path(),
            tokenizer=tokenizer.to_str(),
            named_tokens={},
            eos_ids=eos_ids,
            bos_id=None,
            add_bos=None,
            template=None,
        )
    )


@pytest.fixture(scope="module", params=["toy", "smollm2", "pieces", "metaspace"])
def opened(request: pytest.FixtureRequest) -> tuple[TextModel, LLTokenizer]:
    """Models whose control tokens are among the ordinary pieces, or beyond them."""
    folders = {"toy": toy_model_folder, "smollm2": smollm2_folder}
    if request.param in folders:
        model = TextModel.open(folders[request.param]().path)
    else:
        model = text_model(sentence_piece(metaspace=request.param == "metaspace"), (2,))
    return model, make_tokenizer(model)


def answer(model: TextModel, tokenizer: LLTokenizer, constraint: Constraint, begin: str) -> str:
    """What comes of taking the first token without white space that the masks allow."""
    check_constraint(model, constraint, tokenizer)
    matcher = make_matcher(tokenizer, constraint)
    ids = tokenizer.tokenize_str(begin)
    assert matcher.try_consume_tokens(ids) == len(ids)
    text = begin.encode()
    while not matcher.is_stopped():
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        assert not matcher.is_error(), matcher.get_error()
        if set(allowed) & set(model.eos):
            assert matcher.is_accepting(), text
            break
        assert not set(allowed) & set(model.special)
        token = next(int(t) for t in allowed if not re.search(rb"\s", model.vocabulary[t]))
        assert matcher.consume_token(token)
        text += model.vocabulary[token]
    return text.decode()


def constraints_of(text: str) -> list[tuple[str, Any, str, str]]:
    """Kind, source, what is begun with and the only answer without white space."""
    quoted = json.dumps(text)
    plain = re.sub(r"[|\[\]]", r"\\\g<0>", text)
    named = {"type": "object", "required": [text], "additionalProperties": False}
    pattern = {"patternProperties": {f"^{plain}$|^other$": {"const": 1}}}
    tag = {"tags": [{"begin": text, "regex": "x", "end": text}], "stop_after_first": True}
    return [
        ("json_schema", {"const": text}, "", quoted),
        ("json_schema", {"enum": [text]}, "", quoted),
        ("json_schema", {"type": "string", "pattern": f"^{plain}$"}, "", quoted),
        ("json_schema", {**named, "properties": {text: {"const": 1}}}, "", f"{{{quoted}:1}}"),
        ("json_schema", {**named, **pattern, "maxProperties": 1}, "", f"{{{quoted}:1}}"),
        ("regex", f"a{plain}b", "", f"a{text}b"),
        ("lark", f'start: "a" {quoted} "b"', "", f"a{text}b"),
        ("structural", {**tag, "at_least_one": True}, text, f"{text}x{text}"),
    ]


def test_texts_of_control_tokens_are_spelled(opened: tuple[TextModel, LLTokenizer]) -> None:
    model, tokenizer = opened
    assert set(model.eos) <= set(model.special)
    for text in model.special_texts:
        for kind, source, begin, only in constraints_of(text):
            given = source if isinstance(source, str) else json.dumps(source)
            found = answer(model, tokenizer, Constraint(kind=kind, source=given), begin)
            assert found == only, (kind, given)


def byte_level(added: list[AddedToken]) -> Any:
    letters = sorted(chr(code) for code in range(0x21, 0x7F))
    vocabulary = {letter: place for place, letter in enumerate([*letters, "<e", "<end"])}
    made: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[("<", "e")]))
    made.decoder = decoders.ByteLevel()
    made.add_tokens(added)
    return made


@pytest.mark.parametrize("text", ["<end>", "<end"])
def test_an_end_that_is_no_control_token_is_hidden_too(text: str) -> None:
    tokenizer = byte_level([AddedToken(text, special=False)])
    model = text_model(tokenizer, (tokenizer.token_to_id(text),))
    engine = make_tokenizer(model)
    constraint = Constraint(kind="json_schema", source=json.dumps({"const": text}))
    assert answer(model, engine, constraint, "") == json.dumps(text)


def test_an_added_token_of_a_tag_is_spelled() -> None:
    tokenizer = byte_level([AddedToken("<tool>", special=False), AddedToken("</s>", special=True)])
    model = text_model(tokenizer, (tokenizer.token_to_id("</s>"),))
    constraint = Constraint(kind="regex", source="a<tool>b")
    assert answer(model, make_tokenizer(model), constraint, "") == "a<tool>b"


def test_an_end_that_is_ordinary_text_is_refused() -> None:
    model = text_model(byte_level([]), (5,))
    with pytest.raises(ConstraintInvalid, match="it ends a text; use another model"):
        make_tokenizer(model)


def test_ids_stay_and_what_others_are_made_of_keeps_its_text() -> None:
    unigram: Any = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("</s>", -2.0)], 0))
    unigram.add_special_tokens(["<unk>", "</s>", "<new>"])
    made = byte_level([AddedToken("<e", special=False), AddedToken("</s>", special=True)])
    for tokenizer in (unigram, sentence_piece(), made):
        changed: Any = Tokenizer.from_str(without_added_texts(tokenizer.to_str(), (), "\U0010fffd"))
        kept = {"<e"}
        for text, token in tokenizer.get_vocab(True).items():
            hidden = token in tokenizer.get_added_tokens_decoder() and text not in kept
            assert changed.id_to_token(token) == ("\U0010fffd" + text if hidden else text)
        assert changed.get_vocab_size() == tokenizer.get_vocab_size()


def test_a_control_token_that_merges_lead_to_is_hidden_with_them() -> None:
    layout = json.loads(byte_level([AddedToken("</s>", special=True)]).to_str())
    vocabulary = layout["model"]["vocab"]
    end = next(token["id"] for token in layout["added_tokens"] if token["content"] == "</s>")
    vocabulary |= {"</s>": end, "</": end + 1, "s>": end + 2}
    layout["model"]["merges"] = [["<", "/"], ["s", ">"], ["</", "s>"]]
    model = text_model(Tokenizer.from_str(json.dumps(layout)), (end,))
    text = "a</s>b"
    assert answer(model, make_tokenizer(model), Constraint(kind="regex", source=text), "") == text
