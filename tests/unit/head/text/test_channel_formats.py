"""The formats one by one: what their models write, what comes of it, whatever the pieces are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.errors import Invalid
from head.text.channels import FORMATS, ChannelSplitter, choose_format

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "wet": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                    "where": {"$ref": "#/$defs/point"},
                },
                "$defs": {"point": {"type": "object"}},
            },
        },
    },
    {"name": "now"},
]
CITY = {"city": "Zürich"}
DS = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
DS_END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"

Call = tuple[str, dict[str, object]]
Result = tuple[str, str, list[Call]]


def split(form: str, text: str, step: int = 0, *, cut: bool = False, opened: str = "") -> Result:
    splitter = ChannelSplitter(FORMATS[form], TOOLS, call_id=str, opened=opened)
    size = step or max(len(text), 1)
    pieces = [splitter.push(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(splitter.finish(cut=cut))
    calls = [call for piece in pieces for call in piece.calls]
    assert [call.id for call in calls] == [str(index) for index in range(len(calls))]
    return (
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        [(call.name, json.loads(call.arguments)) for call in calls],
    )


@pytest.mark.parametrize(
    ("form", "answer", "calls"),
    [
        (
            "qwen3-coder",
            "<tool_call>\n<function=get>\n<parameter=city>\n7\n</parameter>\n<parameter=days>\n7\n"
            "</parameter>\n<parameter=wet>\nTrue\n</parameter>\n<parameter=where>\n"
            '{"x": 1}\n</parameter>\n</function>\n</tool_call>',
            [("get", {"city": "7", "days": 7, "wet": True, "where": {"x": 1}})],
        ),
        (
            "qwen3-coder",
            "<function=get><parameter=city>a\n</parameter><parameter=wet>null</parameter>"
            "</function>",
            [("get", {"city": "a\n", "wet": None})],
        ),
        (
            "llama3",
            '{"name": "get", "parameters": {"city": "Zürich"}}; {"name": "now", "arguments": {}}',
            [("get", CITY), ("now", {})],
        ),
        (
            "llama3",
            '<|python_tag|>{"type":"function","name":"now","parameters":null}',
            [("now", {})],
        ),
        (
            "llama4",
            "[get(city='Z\\u00fcrich', days=-3, wet=None, where={'x': [1.5, True]}), now()]",
            [("get", {**CITY, "days": -3, "wet": None, "where": {"x": [1.5, True]}}), ("now", {})],
        ),
        (
            "mistral",
            '[TOOL_CALLS]get[ARGS]{"city": "Zürich"}[TOOL_CALLS]now{}',
            [("get", CITY), ("now", {})],
        ),
        (
            "mistral-list",
            '[TOOL_CALLS] [{"name": "get", "arguments": {"city": "Zürich"}}, {"name": "now"}]',
            [("get", CITY), ("now", {})],
        ),
        (
            "glm",
            "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n</tool_call>\n"
            "<tool_call>now</tool_call>",
            [("get", CITY), ("now", {})],
        ),
        (
            "gemma4",
            '<|tool_call>call:get{city:<|"|>Zürich<|"|>,where:{a b:[1,<|"|>}<|"|>]}}<tool_call|>'
            "<|tool_call>call:now{}<tool_call|>",
            [("get", {**CITY, "where": {"a b": [1, "}"]}}), ("now", {})],
        ),
        (
            "harmony",
            '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"city": "Zürich"}'
            "<|call|><|start|>assistant to=functions.now<|channel|>commentary<|message|><|call|>",
            [("get", CITY), ("now", {})],
        ),
        (
            "deepseek",
            f'{DS[0]}{DS[1]}get{DS[2]}{{"city": "Zürich"}}{DS_END[0]}{DS[1]}now{DS[2]}{{}}'
            f"{DS_END[0]}{DS_END[1]}",
            [("get", CITY), ("now", {})],
        ),
        (
            "deepseek-v3",
            f'{DS[0]}{DS[1]}function{DS[2]}get\n```json\n{{"city": "Zürich"}}\n```{DS_END[0]}'
            f"{DS_END[1]}",
            [("get", CITY)],
        ),
        (
            "deepseek-dsml",
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get">\n<｜DSML｜parameter name="city" '
            'string="true">Zürich</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            '<｜DSML｜invoke name="now"/>\n</｜DSML｜function_calls>',
            [("get", CITY), ("now", {})],
        ),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0"
            '<|tool_call_argument_begin|>{"city": "Zürich"}<|tool_call_end|>'
            "<|tool_calls_section_end|>",
            [("get", CITY)],
        ),
        (
            "kimi-k3",
            '<|open|>tools<|sep|><|open|>call tool="get" index="1"<|sep|><|open|>argument '
            'key="city" type="string"<|sep|>Zürich<|close|>argument<|sep|><|close|>call<|sep|>'
            "<|close|>tools<|sep|><|close|>message<|sep|>",
            [("get", CITY)],
        ),
        (
            "granite",
            '<|tool_call|>[{"name": "get", "arguments": {"city": "Zürich"}}]',
            [("get", CITY)],
        ),
        ("phi4", '<|tool_call|>[{"name": "now"}]<|/tool_call|>', [("now", {})]),
        ("nemotron", '<TOOLCALL>[{"name": "now", "arguments": {}}]</TOOLCALL>', [("now", {})]),
        ("lfm2", '<|tool_call_start|>[get(city="Zürich")]<|tool_call_end|>', [("get", CITY)]),
        (
            "lfm2",
            r'<|tool_call_start|>[get(city="\ud83d\ude00 \ud83d")]<|tool_call_end|>',
            [("get", {"city": "\U0001f600 \ufffd"})],
        ),
        (
            "lfm2",
            r"<|tool_call_start|>[get(city='\d+\\d \x41')]<|tool_call_end|>",
            [("get", {"city": r"\d+\d A"})],
        ),
        (
            "tool-calls",
            '<tool_calls>\n{"name": "get", "arguments": {"city": "Zürich"}}\n{"name": "now"}\n'
            "</tool_calls>",
            [("get", CITY), ("now", {})],
        ),
        (
            "cohere",
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get", "parameters": '
            '{"city": "Zürich"}}\n]<|END_ACTION|>',
            [("get", CITY)],
        ),
        (
            "apertus",
            '<|tools_prefix|>[{"get": {"city": "Zürich"}}, {"now": {}}]<|tools_suffix|>',
            [("get", CITY), ("now", {})],
        ),
        ("gigachat", '<|function_call|>{"name": "now", "arguments": {}}', [("now", {})]),
        (
            "solar",
            "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>get<|tool_call:args|>"
            '{"city": "Zürich"}<|tool_call:end|><|calls|>',
            [("get", CITY)],
        ),
        ("functools", 'functools[{"name": "now", "arguments": {}}]', [("now", {})]),
        ("functionary", '<function=get>{"city": "Zürich"}</function>', [("get", CITY)]),
        (
            "minicpm",
            '<function name="get"><param name="days">3</param></function>',
            [("get", {"days": 3})],
        ),
        (
            "minimax",
            '<minimax:tool_call>\n<invoke name="get">\n<parameter name="days">3</parameter>\n'
            "</invoke>\n</minimax:tool_call>",
            [("get", {"days": 3})],
        ),
        (
            "seed",
            "<seed:tool_call>\n<function=get>\n<parameter=city>Zürich</parameter>\n</function>\n"
            "</seed:tool_call>",
            [("get", CITY)],
        ),
    ],
)
def test_calls_of_a_format(form: str, answer: str, calls: list[Call]) -> None:
    for step in range(8):
        assert split(form, answer, step) == ("", "", calls)
    if form not in ("harmony", "llama4", "llama3"):
        assert split(form, f"Well.\n{answer}\n", 1) == ("Well.", "", calls)


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        # Tools that were not given, and markup that is not whole or not right.
        ("hermes", '<tool_call>{"name": "no", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}, "why": 1}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "\n"}}</tool_call>'),
        ("qwen3-coder", "<tool_call>\n<function=no>\n</function>\n</tool_call>"),
        ("qwen3-coder", "<tool_call>\n<function=now>\n<parameter=a>\n1\n"),
        ("llama3", '{"name": "now"}'),
        ("llama3", '{"name": "Ann", "parameters": {}}'),
        ("llama3", ' {"city": "Zürich"} is a map'),
        ("llama4", "[get(city='Zürich')] is a list"),
        ("llama4", "[1, 2]"),
        ("llama4", "[now(), no()]"),
        ("mistral", "[TOOL_CALLS] no"),
        ("mistral", "[TOOL_CALLS]no[ARGS]{}"),
        ("glm", "<tool_call>get<arg_key>city</arg_key><arg_value>a<arg_value>b</tool_call>"),
        ("gemma4", "<|tool_call>call:now{a:b}<tool_call|>"),
        ("deepseek", f"{DS[0]}{DS[1]}no{DS[2]}{{}}{DS_END[0]}{DS_END[1]}"),
        ("kimi-k2", "<|tool_calls_section_begin|> well<|tool_calls_section_end|>"),
        ("harmony", "<|channel|>commentary to=functions.no<|message|>{}<|call|>"),
        ("harmony", "just text, without a header"),
        ("lfm2", "<|tool_call_start|>[now(]<|tool_call_end|>"),
        ("minimax", '<minimax:tool_call><invoke name="no"></invoke></minimax:tool_call>'),
    ],
)
def test_what_is_no_call_is_text_byte_by_byte(form: str, answer: str) -> None:
    for step in range(8):
        assert split(form, answer, step) == (answer, "", [])


@pytest.mark.parametrize(
    ("form", "opened", "answer", "text", "reasoning"),
    [
        (
            "mistral",
            "[/INST]",
            "[THINK]hm [TOOL_CALLS]now[ARGS]{}[/THINK]Yes",
            "Yes",
            "hm [TOOL_CALLS]now[ARGS]{}",
        ),
        ("gemma4", "<|turn>model\n", "<|channel>thought\nhm\n<channel|>Yes", "Yes", "hm"),
        ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", "Yes", "Yes", ""),
        (
            "harmony",
            "<|start|>assistant",
            "<|channel|>analysis<|message|>hm <|call|><|end|>"
            "<|start|>assistant<|channel|>final<|message|>Yes",
            "Yes",
            "hm <|call|>",
        ),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>", "Yes<|return|>", "Yes", ""),
        (
            "kimi-k3",
            '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>',
            "hm<|close|>think<|sep|><|open|>response<|sep|>Yes<|close|>response<|sep|>",
            "Yes",
            "hm",
        ),
        ("glm", "<|assistant|></think>", "Yes", "Yes", ""),
        ("hermes", "<|im_start|>assistant\n<think>\n", "hm\n</think>\n\nYes", "Yes", "hm"),
        (
            "solar",
            "",
            "<|think|>hm<|end|><|begin|>assistant<|content|>Yes<|end|>",
            "Yes",
            "hm",
        ),
        (
            "apriel",
            "Here are my reasoning steps:\n",
            "hm\n[BEGIN FINAL RESPONSE]\nYes",
            "Yes",
            "hm",
        ),
        (
            "cohere",
            "",
            "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Yes<|END_RESPONSE|>",
            "Yes",
            "hm",
        ),
        (
            "hermes",
            "",
            '<think>hm <tool_call>{"name": "now"}</tool_call> no</think>Yes',
            "Yes",
            'hm <tool_call>{"name": "now"}</tool_call> no',
        ),
    ],
)
def test_reasoning(form: str, opened: str, answer: str, text: str, reasoning: str) -> None:
    for step in range(8):
        assert split(form, answer, step, opened=opened) == (text, reasoning, [])


def test_a_call_that_ends_reasoning_which_nothing_ended_counts() -> None:
    answer = (
        'hm\n<tool_call>\n{"name": "now"}\n</tool_call>\n<tool_call>{"name": "now"}</tool_call>\n'
    )
    for step in range(8):
        assert split("hermes", answer, step, opened="<think>\n") == ("", "hm", [("now", {})] * 2)
    cut = answer + '<tool_call>\n{"na'
    assert split("hermes", cut, 1, cut=True, opened="<think>") == ("", "hm", [("now", {})] * 2)
    assert split("hermes", cut, 1, opened="<think>") == ("", cut, [])


def test_a_message_that_is_cut_in_its_header_leaves_nothing() -> None:
    whole = "<|channel|>final<|message|>Yes<|end|>"
    header = "<|start|>assistant to=functions.now<|channel|>commentary<|message|>"
    for end in range(len("<|s"), len(header) + 1):
        assert split("harmony", whole + header[:end], 1, cut=True) == ("Yes", "", [])


def test_text_without_a_header_comes_at_once() -> None:
    splitter = ChannelSplitter(FORMATS["harmony"], TOOLS, call_id=str)
    assert splitter.push("th").text + splitter.push("at is").text == "that is"
    assert split("harmony", "that is", 1, cut=True) == ("that is", "", [])


def test_a_broken_call_in_a_list_leaves_the_whole_ones() -> None:
    begin, call, end = "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_end|>"
    whole = f"{call}now:0<|tool_call_argument_begin|>{{}}{end}"
    broken = f"{call}now:1<|tool_call_argument_begin|>{{x}}{end}"
    answer = f"{begin}{whole}{broken}{whole}<|tool_calls_section_end|>Yes"
    for step in range(8):
        assert split("kimi-k2", answer, step) == (f"{broken}Yes", "", [("now", {})] * 2)


def test_one_call_at_most() -> None:
    answer = 'a<tool_call>{"name": "now"}</tool_call>b<tool_call>{"name": "get"}</tool_call>c'
    splitter = ChannelSplitter(FORMATS["hermes"], TOOLS, call_id=str, parallel=False)
    pieces = [splitter.push(character) for character in answer]
    pieces.append(splitter.finish(cut=False))
    assert "".join(piece.text for piece in pieces) == "abc"
    assert [call.name for piece in pieces for call in piece.calls] == ["now"]


def test_arguments_are_the_text_that_the_model_wrote() -> None:
    splitter = ChannelSplitter(FORMATS["hermes"], TOOLS, call_id=str)
    written = '{"city" :"Z\\u00fcrich",\n "days": 1e2}'
    given = splitter.push(f'<tool_call>{{"arguments": {written}, "name": "get"}}</tool_call>')
    assert [call.arguments for call in given.calls] == [written]


@pytest.mark.parametrize(
    ("template", "special", "name"),
    [
        ('{{ "<tool_call>" }} <function=x> <parameter=y>', [], "qwen3-coder"),
        ('<tool_call>\n{"name": <function-name>}', ["<tool_call>"], "hermes"),
        ('<|start_header_id|> {"name": function name, "parameters": ...}', [], "llama3"),
        ("[TOOL_CALLS]", ["[ARGS]"], "mistral-list"),
        (None, ["[TOOL_CALLS]", "[ARGS]"], "mistral"),
        ("<|channel|>analysis<|message|>", [], "harmony"),
        ("<tool_call>{{ name }}<arg_key>", [], "glm"),
        ("{% if x %}<think>{% endif %}</think>", [], "think"),
        ("{{ messages }}", ["<s>"], "plain"),
    ],
)
def test_the_format_of_a_template(template: str | None, special: list[str], name: str) -> None:
    assert choose_format(template, special).name == name


def test_a_format_that_is_none_is_refused() -> None:
    with pytest.raises(Invalid, match="there is no format 'no'") as caught:
        choose_format("", (), "no")
    assert caught.value.param == "channels"


def of_a(parameters: dict[str, Any], text: str) -> str:
    """The arguments of a call whose one argument is bare text."""
    tools = [{"name": "get", "parameters": parameters}]
    splitter = ChannelSplitter(FORMATS["qwen3-coder"], tools, call_id=str)
    said = f"<function=get><parameter=a>{text}</parameter></function>"
    (call,) = splitter.push(said).calls
    return call.arguments


def choices(count: int) -> list[Any]:
    return [{"const": number} for number in range(count)]


@pytest.mark.parametrize(
    ("parameters", "made"),
    [
        ({"properties": {"a": {"anyOf": choices(500)}}}, '{"a": 1}'),
        ({"properties": {"a": {"enum": list(range(1000))}}}, '{"a": 1}'),
        # More than a type is worth: what was written stays text.
        ({"properties": {"a": {"anyOf": choices(2000)}}}, '{"a": "1"}'),
        ({"properties": {"a": {"enum": list(range(2000))}}}, '{"a": "1"}'),
        ({"properties": {"a": {"type": ["integer"] * 2000}}}, '{"a": "1"}'),
        ({"properties": {"a": {"$ref": "#/" * 2000}}}, '{"a": "1"}'),
        # What leads round in a circle says nothing.
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, '{"a": 1}'),
        ({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 40}}}, '{"a": 1}'),
    ],
)
def test_a_type_is_looked_for_in_so_many_places(parameters: dict[str, Any], made: str) -> None:
    assert of_a(parameters, "1") == made


def test_a_type_costs_no_more_than_its_places() -> None:
    """A union that holds itself, of a million: it is not gone through, and nothing is copied."""
    looked_at = 0

    class Union(list[Any]):
        def __iter__(self) -> Any:
            nonlocal looked_at
            for part in super().__iter__():
                looked_at += 1
                yield part

    bomb = {"anyOf": Union([0] * 999_999 + [{"$ref": "#"}]), "properties": {"a": {"$ref": "#"}}}
    assert of_a(bomb, "1") == '{"a": "1"}'
    assert looked_at == 0


def test_all_types_of_an_answer_cost_no_more_than_so_many_places() -> None:
    """Three thousand arguments that share one long union: each alone would be worth it."""
    shared = {"b": {"anyOf": choices(400)}}
    names = [f"k{number}" for number in range(3000)]
    parameters = {"properties": {name: {"$ref": "#/$defs/b"} for name in names}, "$defs": shared}
    splitter = ChannelSplitter(
        FORMATS["qwen3-coder"], [{"name": "get", "parameters": parameters}], call_id=str
    )
    said = "".join(f"<parameter={name}>1</parameter>" for name in names)
    (call,) = splitter.push(f"<function=get>{said}</function>").calls
    values = list(json.loads(call.arguments).values())
    numbers = values.index("1")
    assert 50 < numbers < 200
    assert values == [1] * numbers + ["1"] * (3000 - numbers)


def test_a_constraint_of_a_million_types_is_none() -> None:
    part = {"type": ["integer"] * 1_000_000}
    tools = [{"name": "get", "parameters": {"properties": {"a": part}}}]
    assert FORMATS["qwen3-coder"].structural(tools, "required", True) is None
