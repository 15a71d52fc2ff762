"""Chats that ask for what can not be done: a typed error that names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bus.messages.link import GenerateReq
from tests.harness.chat_bench import NOW, WEATHER, ChatBench, chat_folder
from tests.harness.head_bench import TOY

TOOLS = [WEATHER, NOW]


@pytest.fixture
def bench(tmp_path: Path) -> ChatBench:
    return ChatBench(chat_folder(tmp_path / "toy"))


def required(parameters: Any) -> dict[str, Any]:
    """A request that has to call a tool with this schema."""
    return {"tools": [{"name": "f", "parameters": parameters}], "tool_choice": "required"}


BAD_TOOL = {"name": "bad", "parameters": {"type": "object", "not": {}}}

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": 3}, "tools", "invalid"),
    ({"tools": "weather"}, "tools", "invalid"),
    ({"tools": [3]}, "tools[0]", "invalid"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "invalid"),
    ({"tools": [{"name": "a b"}]}, "tools[0].name", "invalid"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1]", "invalid"),
    ({"tool_choice": "required"}, "tool_choice", "invalid"),
    ({"tool_choice": "always"}, "tool_choice", "invalid"),
    ({"tool_choice": 3, "tools": TOOLS}, "tool_choice", "invalid"),
    ({"tool_choice": {}, "tools": TOOLS}, "tool_choice.name", "invalid"),
    ({"tool_choice": {"function": []}, "tools": TOOLS}, "tool_choice.function.name", "invalid"),
    ({"tool_choice": {"type": "x", "name": "now"}, "tools": TOOLS}, "tool_choice.type", "invalid"),
    ({"tool_choice": {"name": "rm"}, "tools": TOOLS}, "tool_choice", "invalid"),
    ({"tools": TOOLS, "schema": {"type": "object"}}, "schema", "invalid"),
    ({"tools": TOOLS, "constraint": {"regex": "a"}}, "constraint", "invalid"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls", "invalid"),
    ({"channels": "hermes9"}, "channels", "invalid"),
    ({"channels": ""}, "channels", "invalid"),
    ({"channels": 3}, "channels", "invalid"),
    (
        {"tools": TOOLS, "tool_choice": "required", "channels": "think"},
        "tool_choice",
        "constraint_invalid",
    ),
    (
        {
            "tools": [NOW, {"name": "f", "parameters": {"type": "object", "not": {}}}],
            "tool_choice": "required",
        },
        "tools[1].parameters.not",
        "constraint_invalid",
    ),
    (
        required({"type": "object", "properties": {"a": {"pattern": "(" * 10_000}}}),
        "tools[0].parameters.properties.a.pattern",
        "constraint_invalid",
    ),
    (required({"type": "array"}), "tools[0].parameters.type", "invalid"),
    (required("a schema"), "tools[0].parameters", "invalid"),
    (
        required({"properties": {"a": {"format": "emial"}}}),
        "tools[0].parameters.properties.a.format",
        "constraint_invalid",
    ),
    (
        {**required({"type": "object", "not": {}}), "tools": [NOW, BAD_TOOL, WEATHER]}
        | {"tool_choice": {"name": "bad"}},
        "tools[1].parameters.not",
        "constraint_invalid",
    ),
    (
        {
            "tools": [NOW, {"name": "f", "parameters": {"properties": {"a": {"type": "object"}}}}],
            "tool_choice": "required",
            "channels": "glm",
        },
        "tools[1].parameters",
        "constraint_invalid",
    ),
    ({"schema": '{"\\ud800": 1}'}, "schema", "constraint_invalid"),
    ({"constraint": {"json_schema": '{"const": "\\ud800"}'}}, "constraint", "constraint_invalid"),
    ({"messages": []}, "messages", "invalid"),
    ({"messages": [{"role": "wizard"}]}, "messages[0].role", "invalid"),
    ({"n": 2}, "n", "invalid"),
    ({"template": 3}, "template", "invalid"),
]


@pytest.mark.parametrize(("body", "param", "code"), BAD)
def test_bad_input_is_a_typed_error_that_names_the_field(
    bench: ChatBench, body: dict[str, Any], param: str, code: str
) -> None:
    error = bench.refused(**body)
    assert (error["param"], error["code"].startswith(code)) == (param, True)
    assert bench.on(1, GenerateReq) == []
    # The head goes on.
    bench.answer(bench.chat(), "Hi")
    assert bench.pieces(b"q2")["text"] == "Hi"


def test_keys_of_chats_are_refused_elsewhere(bench: ChatBench) -> None:
    for name, value in (("tools", TOOLS), ("tool_choice", "auto"), ("channels", "plain")):
        error = bench.refused("generate", model=TOY, prompt="x", **{name: value})
        assert (error["code"], error["param"]) == ("invalid", name)
