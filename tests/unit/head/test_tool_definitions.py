"""Tools of a request: the one form that they are made into, and what is refused by its place."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgpack
import pytest

from bus.errors import Invalid, TooLarge
from bus.messages.text import MAX_TOOLS_BYTES
from head.chat_request import _tools
from head.tool_definitions import (
    MAX_TOOLS,
    MAX_VALUES,
    pack_tools,
    read_tools,
    tool_named,
)

EMPTY = {"type": "object", "properties": {}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("sent", "form"),
    [
        (None, ()),
        ([], ()),
        ((), ()),
        ([function()], ({"name": "f", "description": "", "parameters": EMPTY},)),
        (
            [function(description="\u5929\u6c14", parameters=CITY)],
            ({"name": "f", "description": "\u5929\u6c14", "parameters": CITY},),
        ),
        (
            [{"name": "a.b-c_1", "parameters": None, "strict": True}],
            ({"name": "a.b-c_1", "description": "", "parameters": EMPTY},),
        ),
        (
            [{"type": "function", "name": "f", "description": None, "parameters": {}}],
            ({"name": "f", "description": "", "parameters": EMPTY},),
        ),
        (
            [{"type": None, "function": {"name": "f"}}],
            ({"name": "f", "description": "", "parameters": EMPTY},),
        ),
        (
            [function(parameters={"properties": {"x": True}})],
            (
                {
                    "name": "f",
                    "description": "",
                    "parameters": {"type": "object", "properties": {"x": True}},
                },
            ),
        ),
    ],
)  # fmt: skip
def test_the_one_form(sent: Any, form: Any) -> None:
    assert read_tools(sent) == form
    assert msgpack.unpackb(pack_tools(read_tools(sent))) == list(form)


def test_what_a_schema_says_stays_in_its_order() -> None:
    schema = {
        "required": ["b"],
        "$defs": {"x": {"enum": [1, 2.5, None, "a"]}},
        "properties": {"b": {"$ref": "#/$defs/x"}, "a": {"type": ["string", "null"]}},
        "type": "object",
    }
    (tool,) = read_tools([function(parameters=schema)])
    assert json.dumps(tool["parameters"]) == json.dumps(schema)


@pytest.mark.parametrize(
    ("sent", "param", "sentence"),
    [
        ("f", "tools", "a list of functions, not text"),
        ({"name": "f"}, "tools", "a list of functions, not a map"),
        (["f"], "tools[0]", "should be a map"),
        ([{}], "tools[0].function", "not missing"),
        ([{"type": "web_search"}], "tools[0].type", "'web_search'; tools of type function only"),
        ([{"type": 1, "name": "f"}], "tools[0].type", "an integer"),
        ([{"type": "function", "function": "f"}], "tools[0].function", "not text"),
        ([function(), function(name="a b")], "tools[1].function.name", "'a b'; it should be"),
        ([function(name="")], "tools[0].function.name", "''"),
        ([function(name="a" * 65)], "tools[0].function.name", "1 to 64 of A-Z"),
        ([function(name="f\n")], "tools[0].function.name", "'f\\n'"),
        ([function(name="\u5929")], "tools[0].function.name", "'\\u5929'"),
        ([function(name=None)], "tools[0].function.name", "missing"),
        ([{"name": 7}], "tools[0].name", "an integer"),
        ([function(description=["a"])], "tools[0].function.description", "a list"),
        ([function(description="\ud800x")], "tools[0].function.description", "lone surrogate"),
        ([function(parameters="{}")], "tools[0].function.parameters", "a map, not text"),
        ([function(parameters=[])], "tools[0].function.parameters", "a map, not a list"),
        (
            [function(parameters={"type": "string"})],
            "tools[0].function.parameters.type",
            "'string'; the parameters of a function are an object",
        ),
        (
            [function(parameters={"properties": []})],
            "tools[0].function.parameters.properties",
            "not a list",
        ),
        (
            [function(parameters={"properties": {"a": "string"}})],
            "tools[0].function.parameters.properties.a",
            "a schema, a map, not text",
        ),
        (
            [function(parameters={"required": "a"})],
            "tools[0].function.parameters.required",
            "a list of names",
        ),
        (
            [function(parameters={"properties": {"a": {"default": float("nan")}}})],
            "tools[0].function.parameters.properties.a.default",
            "is nan",
        ),
        (
            [function(parameters={"properties": {"a": {"enum": ["a", b"b"]}}})],
            "tools[0].function.parameters.properties.a.enum[1]",
            "JSON has no such thing",
        ),
        ([function(parameters={1: 2})], "tools[0].function.parameters", "keys of a map are text"),
        ([function(), {"name": "g"}, {"name": "f"}], "tools[2]", "tools[0] are both named f"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_its_place(sent: Any, param: str, sentence: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_tools(sent)
    assert caught.value.param == param
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message
    caught.value.message.encode()


def test_limits() -> None:
    assert len(read_tools([{"name": f"f{n}"} for n in range(MAX_TOOLS)])) == MAX_TOOLS
    with pytest.raises(TooLarge) as many:
        read_tools([{"name": f"f{n}"} for n in range(MAX_TOOLS + 1)])
    assert many.value.param == "tools"
    with pytest.raises(TooLarge, match="fewer functions"):
        read_tools([{"name": "f", "description": "x" * MAX_TOOLS_BYTES}])
    with pytest.raises(Invalid, match="more than 64 levels deep") as deep:
        read_tools([function(parameters=nested(70))])
    assert len(deep.value.message) < 250


def values(count: int) -> dict[str, Any]:
    """A tool of so many values: itself is one, and has two fields, of which one is a list."""
    return {"name": "f", "parameters": {"enum": [0] * (count - 4)}}


def test_tools_have_so_many_values() -> None:
    read_tools([values(MAX_VALUES)])
    with pytest.raises(TooLarge, match="more than 10000 values") as many:
        read_tools([values(MAX_VALUES + 1)])
    assert many.value.param == "tools"


@pytest.mark.parametrize(
    "parameters",
    [
        {"k" * 2_000_000: [0] * 1_000_000},
        {"k" * MAX_TOOLS_BYTES: 0},
        {"enum": ["\u5929" * (MAX_TOOLS_BYTES // 3 + 1)]},
        {"enum": [{"a": 0}] * 8_000_000},
    ],
)
def test_too_large_tools_are_refused_before_they_are_looked_into(parameters: Any) -> None:
    """What stands before the large part would be refused by name, were it looked at."""
    for read in (read_tools, _tools):
        with pytest.raises(TooLarge) as large:
            read([{"name": "a name"}, function(parameters=parameters)])
        assert large.value.param == "tools"


def test_places_are_spelled_out_for_errors_alone() -> None:
    """A long key over many values is held once; an error's place is cut."""
    wide: dict[str, Any] = {"k" * 500_000: [[[0]] for _ in range(3000)]}
    tracemalloc.start()
    try:
        read_tools([function(parameters=wide)])
        (_, most) = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4_000_000
    wide["k" * 500_000].append(b"")
    with pytest.raises(Invalid) as caught:
        read_tools([function(parameters=wide)])
    assert caught.value.param == "tools[0].function.parameters.".ljust(128, "k")
    assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"\u5929" * 100: float("inf")}, "tools[0].parameters." + "\u5929" * 36),
        ({"properties": {"k" * 1000: 5}}, "tools[0].parameters.properties.".ljust(128, "k")),
    ],
)
def test_a_param_has_128_bytes(parameters: Any, param: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_tools([{"name": "f", "parameters": parameters}])
    assert caught.value.param == param
    assert len(param.encode()) in range(126, 129)


def test_an_integer_that_can_not_be_sent_is_refused() -> None:
    wide = {"properties": {"n": {"enum": [2**64]}}}
    with pytest.raises(Invalid, match="an integer beyond 64 bits") as caught:
        read_tools([{"name": "f", "parameters": wide}], "functions")
    assert caught.value.param == "functions"
    wide["properties"]["n"]["enum"] = [2**64 - 1, -(2**63)]
    assert read_tools([{"name": "f", "parameters": wide}])


def test_a_tool_by_its_name() -> None:
    tools = read_tools([{"name": "f"}, {"name": "g"}])
    assert tool_named(tools, "g") is tools[1]
    assert tool_named(tools, "h") is None
