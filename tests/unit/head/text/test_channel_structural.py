"""Constraints under which tools are called: what they accept, and that it comes out as calls."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from llguidance import LLTokenizer

from bus.errors import Invalid
from bus.messages.sampling import Constraint
from bus.text.constraints import check_constraint, make_matcher, make_tokenizer
from bus.text.tokenizer import TextModel
from head.text.channel_without import pattern_without
from head.text.channels import FORMATS, ChannelSplitter
from head.tool_definitions import MAX_TOOLS
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
#: Calls of `get` with CITY and of `get_time`, as each format that writes arguments one by one does.
BY_ARGUMENT = {
    "qwen3-coder": (
        f"<tool_call>\n<function=get>\n{BARE}</function>\n</tool_call>",
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
    ),
    "glm": (
        "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "<tool_call>get_time\n</tool_call>",
    ),
    "gemma4": (
        '<|tool_call>call:get{city:<|"|>Zürich<|"|>,days:3}<tool_call|>',
        "<|tool_call>call:get_time{}<tool_call|>",
    ),
    "llama4": (
        '<|python_start|>[get(city="Zürich", days=3)]<|python_end|>',
        "<|python_start|>[get_time()]<|python_end|>",
    ),
    "lfm2": (
        '<|tool_call_start|>[get(city="Zürich", days=3)]<|tool_call_end|>',
        "<|tool_call_start|>[get_time()]<|tool_call_end|>",
    ),
    "deepseek-dsml": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get">\n'
        '<｜DSML｜parameter name="city" string="true">Zürich</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_time">\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    "kimi-k3": (
        '<|open|>tools<|sep|><|open|>call tool="get" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Zürich<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        '<|open|>tools<|sep|><|open|>call tool="get_time" index="1"<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    "seed": (
        "<seed:tool_call>\n<function=get>\n<parameter=city>Zürich</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        "<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>",
    ),
    "minimax": (
        '<minimax:tool_call>\n<invoke name="get">\n<parameter name="city">Zürich</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
    ),
    "minicpm": (
        '<function name="get"><param name="city">Zürich</param><param name="days">3</param>'
        "</function>",
        '<function name="get_time"></function>',
    ),
}
#: What is written before the value of `city` and behind it; nothing else of the call has "Zürich".
AROUND_CITY = {form: get.split("Zürich") for form, (get, _) in BY_ARGUMENT.items()}


def accepts(source: dict[str, Any], text: str) -> bool:
    constraint = Constraint(kind="structural", source=json.dumps(source))
    matcher = make_matcher(TOKENIZER, constraint)
    # The toy model's tokens are bytes.
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def called(form: Any, spec: dict[str, Any]) -> tuple[str, str]:
    """Calls of `get` with CITY and of `get_time`."""
    if form.name in BY_ARGUMENT:
        return BY_ARGUMENT[form.name]
    get, time = spec["tags"][:2]
    arguments = json.dumps(CITY, ensure_ascii=False)
    return around(spec, get, arguments), around(spec, time, "{}")


def around(spec: dict[str, Any], tag: dict[str, Any], inside: str) -> str:
    """All of an answer with one call."""
    return f"{spec.get('open', '')}{tag['begin']}{inside}{tag['end']}{spec.get('close', '')}"


def calls_in(form: str, text: str, tools: list[dict[str, Any]] = TOOLS) -> list[tuple[str, Any]]:
    splitter = ChannelSplitter(FORMATS[form], tools, call_id=str)
    pieces = (splitter.push(text), splitter.finish(cut=False))
    return [(call.name, json.loads(call.arguments)) for piece in pieces for call in piece.calls]


def test_the_formats_that_can_be_constrained() -> None:
    assert set(FORMATS) - {form.name for form in CONSTRAINED} == {"plain", "think"}
    assert FORMATS["plain"].structural(TOOLS, "required", True) is None


@pytest.mark.parametrize("form", CONSTRAINED, ids=lambda form: form.name)
def test_what_is_accepted_comes_out_as_calls(form: Any) -> None:
    source = form.structural(TOOLS, "required", True)
    check_constraint(TOY, Constraint(kind="structural", source=json.dumps(source)), TOKENIZER)
    one, two = called(form, source)
    assert accepts(source, one)
    assert calls_in(form.name, one) == [("get", CITY)]
    wrong = two.replace("get_time", "get")
    for text in ("", "I will not.", wrong):
        assert not accepts(source, text)
    only = form.structural(TOOLS, "required", False)
    assert accepts(only, one)
    assert not accepts(only, one + two)
    for text in (f"Well.\n{one}", f"{one} Done."):
        assert not accepts(source, text)
        assert not accepts(only, text)
    if not form.calls.one:
        first = one.removesuffix(source.get("close", ""))
        text = first + source.get("between", "\n") + two.removeprefix(source.get("open", ""))
        assert accepts(source, text)
        assert calls_in(form.name, text) == [("get", CITY), ("get_time", {})]
    named = form.structural(TOOLS, "get_time", False)
    assert accepts(named, two)
    assert not accepts(named, one)


@pytest.mark.parametrize("form", BY_ARGUMENT)
def test_bare_text_is_what_the_parser_takes_it_for(form: str) -> None:
    """Whatever is let through is read as it was meant; what would be read otherwise is not."""
    source = FORMATS[form].structural(TOOLS, "get", False)
    assert source is not None
    before, behind = AROUND_CITY[form]
    inside = re.findall(r"<[^<>]+>", before + behind)
    parts = (*inside, *"ab </>\n\"'\\", "null", "5", "Z\u00fc", "</", '<|"|>', "<arg_value>")
    rng, taken = random.Random(form), 0
    plain = ["a", "5", "null", "a < b", "two\nlines", "Z\u00fcrich {x}", "</b>"]
    for value in (*plain, *("".join(rng.choices(parts, k=rng.randint(0, 6))) for _ in range(60))):
        written = value
        if form in ("llama4", "lfm2"):
            written = json.dumps(value, ensure_ascii=False)[1:-1]
        text = before + written + behind
        lets = accepts(source, text)
        assert lets or value not in plain, value
        if lets:
            assert calls_in(form, text) == [("get", {**CITY, "city": value})], text
        taken += lets
    assert taken > len(plain)


#: Ends of values, which a text can not have in it.
ENDS = {
    "qwen3-coder": ["</parameter>", "<parameter=a>", "a\n</function>"],
    "glm": ["</arg_value>", "a<arg_value>"],
    "gemma4": ['<|"|>'],
    "deepseek-dsml": ["a</｜DSML｜parameter>"],
    "kimi-k3": ["<|close|>argument<|sep|>"],
    "seed": ["</parameter>", "\na"],
    "minimax": ["a</parameter>"],
    "minicpm": ["</param>"],
}


@pytest.mark.parametrize(("form", "value"), [(f, v) for f, ends in ENDS.items() for v in ends])
def test_bare_text_that_would_be_taken_for_something_else_is_not_accepted(
    form: str, value: str
) -> None:
    source = FORMATS[form].structural(TOOLS, "get", False)
    assert source is not None
    before, behind = AROUND_CITY[form]
    assert accepts(source, f"{before}a{behind}")
    assert not accepts(source, f"{before}{value}{behind}")


TEXTS = [
    {
        "name": "get",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {
                    "type": "object",
                    "properties": {"names": {"type": "array", "items": {"type": "string"}}},
                }
            },
        },
    }
]


#: How the argument `days` is written.
DAYS = {
    "qwen3-coder": "<parameter=days>\n3\n</parameter>\n",
    "glm": "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n",
    "llama4": ", days=3",
    "lfm2": ", days=3",
    "deepseek-dsml": '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n',
    "kimi-k3": '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>',
    "seed": "<parameter=days>3</parameter>\n",
    "minimax": '<parameter name="days">3</parameter>\n',
    "minicpm": '<param name="days">3</param>',
}


def with_json(form: str, value: Any) -> str:
    """A call whose one argument `city` is JSON and no text."""
    written = json.dumps(value, ensure_ascii=False)
    text = BY_ARGUMENT[form][0].replace(DAYS[form], "")
    text = text.replace('string="true"', 'string="false"').replace('type="string"', 'type="object"')
    return text.replace('"Zürich"', "Zürich").replace("Zürich", written)


@pytest.mark.parametrize("form", DAYS)
def test_text_inside_of_json_does_not_end_the_value(form: str) -> None:
    source = FORMATS[form].structural(TEXTS, "get", False)
    assert source is not None
    check_constraint(TOY, Constraint(kind="structural", source=json.dumps(source)), TOKENIZER)
    for names in (["a < b", "</b>", "<", "<<", "x</"], ["</arg_value", "</｜DSML｜param"], []):
        text = with_json(form, {"names": names})
        assert accepts(source, text), text
        assert calls_in(form, text, TEXTS) == [("get", {"city": {"names": names}})]
    for end in ENDS.get(form, []):
        value = {"names": [f"a{end}b"]}
        text = with_json(form, value)
        if accepts(source, text):
            assert calls_in(form, text, TEXTS) == [("get", {"city": value})]


def test_a_pattern_keeps_tags_out_and_nothing_else() -> None:
    for tags in (("</arg_value>", "<arg_value>"), ("</param>",), ("<|close|>",), ("<a>", "<a/>")):
        pattern, rng = re.compile(pattern_without(tags)), random.Random(str(tags))
        for _ in range(2000):
            parts = [*tags, *(tag[:n] for tag in tags for n in range(1, len(tag))), "x", "\n", ">"]
            text = "".join(rng.choices(parts, k=rng.randint(0, 5)))
            assert bool(pattern.fullmatch(text)) == (not any(tag in text for tag in tags)), text


@pytest.mark.parametrize("form", CONSTRAINED, ids=lambda form: form.name)
def test_t6_where_only_a_call_can_come_what_is_cut_is_no_text(form: Any) -> None:
    for choice in ("required", "get"):
        source = form.structural(TOOLS, choice, True)
        one, _ = called(form, form.structural(TOOLS, "required", True))
        assert accepts(source, one)
        for end in range(len(one)):
            splitter = ChannelSplitter(form, TOOLS, call_id=str, only_calls=True)
            pieces = [splitter.push(letter) for letter in one[:end]]
            pieces.append(splitter.finish(cut=True))
            assert "".join(piece.text + piece.reasoning for piece in pieces) == "", one[:end]


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


@pytest.mark.parametrize("form", sorted(BY_ARGUMENT.keys() - {"qwen3-coder", "llama4", "lfm2"}))
def test_other_formats_refuse_what_they_can_not_be_held_to(form: str) -> None:
    def source(part: Any, **more: Any) -> Any:
        parameters = {"type": "object", "properties": {"a": part}, **more}
        return FORMATS[form].structural([{"name": "f", "parameters": parameters}], "f", True)

    assert source({"type": "integer", "minimum": 3}) is not None
    assert source({"type": ["boolean", "null"]}) is not None
    assert source({"type": "array", "items": {"type": "number"}}) is not None
    assert source({"type": "array", "items": {"type": "string"}}) is not None
    refused: tuple[dict[str, Any], ...] = (
        {"type": "string", "pattern": "a+"},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "string"}, "properties": {}},
        {"type": "array"},
        {"$ref": "#/$defs/a"},
        {},
    )
    for part in refused:
        assert source(part) is None, part
    assert source({"type": "string"}, minProperties=1) is None
    assert source({"type": "string"}, required=["b"]) is None


@pytest.mark.parametrize("form", ["llama4", "gemma4"])
def test_arguments_with_something_between_them_may_be_missing(form: str) -> None:
    """Of three arguments of which the second has to be there."""
    properties = {key: {"type": "integer"} for key in "abc"}
    parameters = {"type": "object", "properties": properties, "required": ["b"]}
    tools = [{"name": "f", "parameters": parameters}]
    source = FORMATS[form].structural(tools, "f", False)
    assert source is not None
    before, behind = around(source, source["tags"][0], "ARGUMENTS").split("ARGUMENTS")
    between, sign = (", ", "=") if form == "llama4" else (",", ":")
    for keys in ("b", "ab", "bc", "abc", "", "a", "ac", "ba", "bb"):
        text = before + between.join(f"{key}{sign}1" for key in keys) + behind
        assert accepts(source, text) == (keys in ("b", "ab", "bc", "abc")), keys
        if accepts(source, text):
            assert calls_in(form, text, tools) == [("f", dict.fromkeys(keys, 1))]


def test_a_name_may_look_like_a_blank_of_the_format() -> None:
    parameters = {"type": "object", "properties": {"{type}": {"type": "integer"}}}
    tools = [{"name": "f", "parameters": parameters}]
    source = FORMATS["kimi-k3"].structural(tools, "f", False)
    assert source is not None
    assert r"key=\"{type}\" type=\"number\"" in source["tags"][0]["lark"]


@pytest.mark.parametrize("form", BY_ARGUMENT)
def test_a_word_of_the_grammar_may_be_one_of_a_schema(form: str) -> None:
    properties = {"bare": {"type": "integer", "description": "bare"}, "FREE": {"type": "boolean"}}
    tools = [{"name": "f", "parameters": {"type": "object", "properties": properties}}]
    source = json.dumps(FORMATS[form].structural(tools, "f", False))
    check_constraint(TOY, Constraint(kind="structural", source=source), TOKENIZER)


def test_as_many_tools_as_a_request_may_have() -> None:
    for form in ("hermes", "glm"):
        many = [{**TOOLS[0]["function"], "name": f"get_{n}"} for n in range(MAX_TOOLS)]
        source = FORMATS[form].structural(many, "required", True)
        assert source is not None
        for begins in ({}, {"at_start": True}):
            text = json.dumps({**source, **begins})
            check_constraint(TOY, Constraint(kind="structural", source=text), TOKENIZER)


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
