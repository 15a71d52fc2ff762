"""Structural constraints whose answers are tags alone, or begin with a text of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.errors import ConstraintInvalid
from bus.messages.sampling import Constraint
from bus.text.constraints import check_constraint, make_matcher, make_tokenizer
from bus.text.tokenizer import TextModel
from tests.harness.models import toy_model_folder

#: Its tokens are bytes.
TOY = TextModel.open(toy_model_folder().path)
TOKENIZER = make_tokenizer(TOY)
TAGS: list[dict[str, Any]] = [
    {"begin": "<f>", "end": "</f>", "schema": {"type": "integer"}},
    {"begin": "a(", "end": ")", "regex": "[a-z(]*"},
    {"begin": "ba(", "end": ")", "lark": 'start: "q"'},
]
ONE: dict[str, Any] = {"tags": TAGS, "only_tags": True, "at_least_one": True}


def accepts(spec: dict[str, Any], text: str) -> bool:
    constraint = Constraint(kind="structural", source=json.dumps(spec))
    check_constraint(TOY, constraint, TOKENIZER)
    matcher = make_matcher(TOKENIZER, constraint)
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("more", "yes", "no"),
    [
        (
            {},
            ["<f>1</f>", "<f>1</f>a(b)ba(q)", "ba(q)\n\na()\n<f>2</f>\n", "a(()"],
            ["", "\n", "x<f>1</f>", "<f>1</f>x", "<f>1</f> a()", "<f>1</f>\n\n\na()", "<f>b</f>"],
        ),
        ({"at_least_one": False}, ["", "a()", "a()a()"], ["\n", "x", "a()x"]),
        ({"stop_after_first": True}, ["a()", "<f>3</f>"], ["", "a()a()", "a()\n", "a()x"]),
        (
            {"open": "[", "between": "; ", "close": "]"},
            ["[a()]", "[a(); ba(q); <f>1</f>]"],
            ["[]", "a()", "[a()", "[a();]", "[a()ba(q)]", "[a()]\n", "[a()]x", "[a()][a()]"],
        ),
        ({"between": ""}, ["a()a()"], ["a()\na()", "a()\n"]),
        (
            {"before": "</t>"},
            ["</t>a()", "so </t\n</t>\na()", "a()ba( <f>x</t>\n\na()a()", "<t></t><f>1</f>"],
            ["a()", "x</t>", "x</t></t>a()", "x</t> a()", "x</t>\n\n\na()", "x</t>a()</t>"],
        ),
        (
            {"before": "</t>", "open": "[", "close": "]", "stop_after_first": True},
            ["x</t>[a()]", "[</t>\n[a()]"],
            ["[x</t>a()]", "x</t>[a()a()]"],
        ),
    ],
)
def test_an_answer_of_tags_alone(more: dict[str, Any], yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not accepts({**ONE, **more}, text)] == []
    assert [text for text in no if accepts({**ONE, **more}, text)] == []


def test_a_text_before_free_text_with_tags() -> None:
    spec = {"tags": TAGS[:2], "before": "</t>"}
    for text in ("</t>", "<f></t> and <f>1</f> x", "</t></t>"):
        assert accepts(spec, text), text
    assert not accepts(spec, "hi")
    assert not accepts(spec, "</t><f>x</f>")
    assert accepts({**spec, "at_start": True}, "x</t><f>1</f> and more")
    assert not accepts({**spec, "at_start": True}, "x</t>y<f>1</f>")


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({**ONE, "before": ""}, "structural.before: it is empty"),
        ({**ONE, "before": 1}, "structural.before"),
        ({**ONE, "before": "\ud800"}, r"structural\.before: it has half a character"),
        ({**ONE, "open": "\ud800"}, r"structural\.open: it has half a character"),
        ({**ONE, "between": "\ud800"}, r"structural\.between: it has half a character"),
        ({**ONE, "close": "\ud800"}, r"structural\.close: it has half a character"),
        ({**ONE, "tags": [TAGS[0], {**TAGS[1], "end": "\ud800"}]}, r"structural\.tags\[1\]"),
        ({**ONE, "close": "a" * 300}, "structural.close"),
        ({**ONE, "between": ",", "close": ",]"}, "structural.close: it begins with between"),
        ({"tags": TAGS[:1], "between": ","}, "structural.between: it goes with only_tags"),
        ({**ONE, "only_tags": 1}, "structural.only_tags"),
        ({"tags": TAGS}, "inside begin"),
        ({**ONE, "tags": [TAGS[1], {**TAGS[1], "begin": "a(b"}]}, "at the start of begin"),
    ],
)
def test_what_is_no_such_constraint_is_refused(source: dict[str, Any], named: str) -> None:
    with pytest.raises(ConstraintInvalid, match=named):
        check_constraint(TOY, Constraint(kind="structural", source=json.dumps(source)), TOKENIZER)


CODE = {"begin": "```python\n", "regex": "(?s:.*)", "end": "```"}
NUMBER = {"begin": "<n>", "schema": {"type": "integer"}, "end": ""}
DIGITS = {"begin": "<d>", "regex": "[0-9]+", "end": ""}
WORD = {"begin": "<w>", "lark": "start: /[a-z]+/", "end": ""}


@pytest.mark.parametrize(
    ("more", "tag", "named"),
    [
        ({"open": "[", "close": "]"}, CODE, "close ']'"),
        ({"close": "\nEND", "stop_after_first": True}, CODE, "close"),
        ({"close": "0"}, NUMBER, "close '0'"),
        ({"between": "0", "close": "."}, DIGITS, "between '0'"),
        ({"close": "end"}, WORD, "close 'end'"),
    ],
)
def test_a_tag_that_takes_what_should_follow_is_refused(
    more: dict[str, Any], tag: dict[str, Any], named: str
) -> None:
    spec = {**ONE, **more, "tags": [TAGS[0], tag]}
    with pytest.raises(ConstraintInvalid, match=rf"structural\.tags\[1\]: {named}"):
        accepts(spec, "")


def test_tags_that_can_end_are_held() -> None:
    assert accepts({**ONE, "tags": [NUMBER], "between": ",", "close": "."}, "<n>-10,<n>3.")
    assert accepts({**ONE, "tags": [DIGITS], "between": " ", "close": "."}, "<d>10 <d>3.")
    assert accepts({**ONE, "tags": [WORD], "close": "0"}, "<w>ab0")
    # Nothing has to follow, so the tag may go on for as long as the model likes.
    assert accepts({**ONE, "tags": [CODE]}, "```python\nx```")
