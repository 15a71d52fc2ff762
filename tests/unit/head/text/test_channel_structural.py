"""Constraints under which tools are called: what they accept, and that it comes out as calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLTokenizer

from bus.errors import Invalid
from bus.messages.sampling import Constraint
from bus.text.constraints import check_constraint, make_matcher, make_tokenizer
from bus.text.tokenizer import TextModel
from head.text.channels import FORMATS, ChannelSplitter
from tests.harness.models import toy_model_folder

TOY = TextModel.open(toy_model_folder().path)
TOKENIZER: LLTokenizer = make_tokenizer(TOY)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                    "days": {"type": "integer"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
    {"name": "now"},
]
CITY = {"city": "Zürich", "days": 3}
BARE = "<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
CONSTRAINED = [form for form in FORMATS.values() if form.tag is not None]


def accepts(source: dict[str, Any], text: str) -> bool:
    constraint = Constraint(kind="structural", source=json.dumps(source))
    matcher = make_matcher(TOKENIZER, constraint)
    # The toy model's tokens are bytes.
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def calls_in(form: str, text: str) -> list[tuple[str, Any]]:
    splitter = ChannelSplitter(FORMATS[form], TOOLS, call_id=str)
    pieces = (splitter.push(text), splitter.finish(cut=False))
    return [(call.name, json.loads(call.arguments)) for piece in pieces for call in piece.calls]


def test_the_formats_that_can_be_constrained() -> None:
    names = {form.name for form in CONSTRAINED}
    assert names >= {"hermes", "llama3", "mistral", "mistral-list", "qwen3-coder", "deepseek"}
    assert FORMATS["plain"].structural(TOOLS, "required", True) is None
    assert FORMATS["harmony"].structural(TOOLS, "required", True) is None


@pytest.mark.parametrize("form", CONSTRAINED, ids=lambda form: form.name)
def test_what_is_accepted_comes_out_as_calls(form: Any) -> None:
    source = form.structural(TOOLS, "required", True)
    check_constraint(TOY, Constraint(kind="structural", source=json.dumps(source)), TOKENIZER)
    get, time = source["tags"][:2]
    bare = "lark" in get
    one = get["begin"] + (BARE if bare else json.dumps(CITY, ensure_ascii=False)) + get["end"]
    two = time["begin"] + ("" if bare else "{}") + time["end"]
    for text, calls in (
        (one, [("get", CITY)]),
        (f"I will look.\n{one}\n{two}", [("get", CITY), ("get_time", {})]),
    ):
        assert accepts(source, text)
        assert calls_in(form.name, text) == calls
    wrong = get["begin"] + ("<parameter=days>\n3\n</parameter>\n" if bare else "{}") + get["end"]
    for text in ("", "I will not.", wrong):
        assert not accepts(source, text)
    only = form.structural(TOOLS, "required", False)
    assert accepts(only, f"Well.\n{one}")
    assert not accepts(only, one + two)
    named = form.structural(TOOLS, "get_time", False)
    assert accepts(named, two)
    assert not accepts(named, one)


@pytest.mark.parametrize("value", ["a", "", "\n", "a</parameter>", "a\nb <parameter=days>", "null"])
def test_bare_text_is_what_the_parser_takes_it_for(value: str) -> None:
    source = FORMATS["qwen3-coder"].structural(TOOLS, "get", False)
    assert source is not None
    tag = source["tags"][0]
    text = f"{tag['begin']}<parameter=city>\n{value}\n</parameter>\n{tag['end']}"
    assert accepts(source, text)
    assert calls_in("qwen3-coder", text) == [("get", {"city": value})]


@pytest.mark.parametrize("value", ["</parameter>", "<parameter=a>", "a\n</function>"])
def test_bare_text_that_would_be_taken_for_something_else_is_not_accepted(value: str) -> None:
    source = FORMATS["qwen3-coder"].structural(TOOLS, "get", False)
    assert source is not None
    tag = source["tags"][0]
    text = f"{tag['begin']}<parameter=city>\n{value}\n</parameter>\n{tag['end']}"
    assert not accepts(source, text)


def test_arguments_that_bare_text_can_not_be_held_to() -> None:
    def source(part: Any) -> Any:
        tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": part}}}]
        return FORMATS["qwen3-coder"].structural(tools, "required", True)

    assert source({"type": "array", "items": {"type": "integer"}}) is not None
    assert source({"type": ["integer", "null"]}) is not None
    for part in ({"type": "string", "pattern": "a+"}, {}, {"enum": [1, "a"]}):
        assert source(part) is None


@pytest.mark.parametrize(
    "more",
    [
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"not": {}},
        {"minProperties": 1},
        {"dependentRequired": {"a": ["b"]}},
        {"patternProperties": {"a": {"maxLength": 2}}},
        {"$defs": {}},
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "minLength": 5}}},
        {"properties": {"a": {"type": "string", "enum": ["aa", "b"], "minLength": 2}}},
        {"properties": {"a": {"type": "string", "enum": ["x\n</parameter>\n<parameter=z>\ny"]}}},
        {"properties": {"a": {"type": "string", "enum": ["</parameter>"]}}},
    ],
)
def test_what_bare_text_can_not_be_held_to_is_not_passed_over(more: dict[str, Any]) -> None:
    text = {"type": "string", "description": "A text.", "enum": ["a b", "<c>"]}
    schema: dict[str, Any] = {"properties": {"a": text, "b": {"type": "string"}}}
    schema |= {"additionalProperties": False, "$schema": "https://json-schema.org/draft/2020-12"}

    def source(parameters: dict[str, Any]) -> Any:
        tools = [{"name": "f", "parameters": parameters}]
        return FORMATS["qwen3-coder"].structural(tools, "required", True)

    assert source(schema) is not None
    assert source(schema | more) is None


def test_a_tool_that_was_not_given_is_refused() -> None:
    with pytest.raises(Invalid, match="there is no tool 'no'") as caught:
        FORMATS["hermes"].structural(TOOLS, "no", True)
    assert caught.value.param == "tool_choice"


def test_a_tool_that_takes_nothing_is_called_with_nothing() -> None:
    source = FORMATS["hermes"].structural([TOOLS[1]], "required", False)
    assert source is not None
    call = '<tool_call>\n{{"name": "get_time", "arguments": {}}}\n</tool_call>'
    assert accepts(source, call.format("{}"))
    assert not accepts(source, call.format('{"PARAMETER": "VALUE"}'))


def test_a_tool_that_takes_any_object_is_called_with_any() -> None:
    tools = [{"name": "keep", "parameters": {"type": "object"}}]
    source = FORMATS["hermes"].structural(tools, "required", False)
    assert source is not None
    call = '<tool_call>\n{"name": "keep", "arguments": {"a": 1}}\n</tool_call>'
    assert accepts(source, call)
