"""Messages in all the forms that clients send, made into one; what is wrong is named by place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.errors import Invalid, TooLarge
from head.text.messages import MAX_MESSAGES, normalise
from head.text.tool_messages import Arguments


def said(role: str, content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str = "f", arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def calling(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ([], ""),
        (["a", {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb"),
    ],
)
def test_content(content: Any, text: str) -> None:
    assert normalise([said("user", content)]) == [said("user", text)]
    assert normalise([{"role": "assistant"}]) == [said("assistant", "")]


def test_what_is_null_is_left_out_and_what_is_unknown_stays() -> None:
    message = said("user", "a", name=None, tool_calls=None, mood={"level": [1, None, "high"]})
    assert normalise([message]) == [said("user", "a", mood={"level": [1, None, "high"]})]
    assert normalise([said("assistant", "a", tool_calls=[])]) == [said("assistant", "a")]


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_has_the_names_that_templates_read(name: str) -> None:
    (found,) = normalise([said("assistant", "a", **{name: "hm"})])
    assert (found["reasoning_content"], found["thinking"], found[name]) == ("hm", "hm", "hm")
    assert normalise([said("assistant", "a", **{name: ""})]) == [said("assistant", "a")]


# --- calls ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "values", "text"),
    [
        (None, {}, "{}"),
        ("", {}, "{}"),
        ("{}", {}, "{}"),
        ({}, {}, "{}"),
        ('{"a":1,  "b":"\u5929"}', {"a": 1, "b": "\u5929"}, '{"a":1,  "b":"\u5929"}'),
        ('{"a":1,  "b":"\\u5929"}', {"a": 1, "b": "\u5929"}, '{"a": 1, "b": "\u5929"}'),
        ({"\u5929": [None]}, {"\u5929": [None]}, '{"\u5929": [null]}'),
    ],
)  # fmt: skip
def test_arguments_are_a_map_and_their_text(arguments: Any, values: Any, text: str) -> None:
    (found,) = normalise([calling(call("f", arguments))])
    made = found["tool_calls"][0]["function"]["arguments"]
    assert isinstance(made, Arguments)
    assert dict(made) == values
    assert json.dumps(made) == json.dumps(values)
    assert str(made) == text
    assert f"<{made}>" == "<" + made + ">" == f"<{text}>"


def test_a_call_in_each_form() -> None:
    whole = {"id": "c1", **call("f", {"a": 1})}
    forms = (
        calling(whole),
        calling({"id": "c1", "function": {"name": "f", "arguments": '{"a": 1}'}}),
        calling({"id": "c1", "name": "f", "arguments": '{"a": 1}'}),
    )
    for form in forms:
        assert normalise([form]) == [said("assistant", "", tool_calls=[whole])]
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert normalise([old]) == [said("assistant", "", tool_calls=[call("f", {})])]


def test_results_say_what_they_answer() -> None:
    calls = calling(call("f", id="c1"), call("g", id="c2"))
    results = normalise([calls, said("tool", tool_call_id="c2"), said("tool")])[1:]
    assert [(one["tool_call_id"], one["name"]) for one in results] == [("c2", "g"), ("c1", "f")]
    named = normalise([calls, said("function", name="g"), said("tool", name="f")])[1:]
    assert [(one["role"], one["tool_call_id"]) for one in named] == [("tool", "c2"), ("tool", "c1")]
    assert normalise([said("tool", tool_call_id="none")]) == [said("tool", tool_call_id="none")]
    assert normalise([calling(call("f")), said("tool")])[1] == said("tool", name="f")


# --- what is wrong ----------------------------------------------------------------------------

DEEP: Any = "x"
for _ in range(70):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("messages", "param", "sentence"),
    [
        ([said("user", "a\ud800b")], "messages[0].content", "lone surrogate at character 1"),
        ([said("user", ["\udc00"])], "messages[0].content[0]", "lone surrogate"),
        (
            [said("user", [{"type": "text", "text": "\udc00"}])],
            "messages[0].content[0].text",
            "lone surrogate",
        ),
        ([said("user", b"a")], "messages[0].content", "not bytes"),
        ([said("user", [{"type": "image_url"}])], "messages[0].content[0]", "'image_url'"),
        ([said("user", [{"type": ["text"]}])], "messages[0].content[0]", "a list"),
        ([said("user"), {1: 2}], "messages[1]", "a map with role and content"),
        ([{"role": ["user"]}], "messages[0].role", "a list"),
        ([said("user", mood="\ud800")], "messages[0].mood", "lone surrogate"),
        ([said("user", mood=[{"a": b""}])], "messages[0].mood[0].a", "JSON has no such thing"),
        ([said("user", mood=float("inf"))], "messages[0].mood", "is inf"),
        ([said("user", **{"\ud800": 1})], "messages[0]", "lone surrogate"),
        ([said("user", mood=DEEP)], "messages[0].mood" + "[0]" * 37 + "[", "64 levels deep"),
        ([said("user", name="")], "messages[0].name", "not empty"),
        ([said("tool", tool_call_id=7)], "messages[0].tool_call_id", "not an integer"),
        ([said("tool", tool_call_id="a" * 257)], "messages[0].tool_call_id", "not longer"),
        ([said("assistant", thinking=["a"])], "messages[0].thinking", "not a list"),
        ([said("user", tool_calls=[call()])], "messages[0].tool_calls", "of role user"),
        ([said("assistant", tool_calls="f")], "messages[0].tool_calls", "not text"),
        ([calling("f")], "messages[0].tool_calls[0]", "not text"),
        ([calling({})], "messages[0].tool_calls[0].function", "not missing"),
        ([calling({"type": "mcp"})], "messages[0].tool_calls[0].type", "'mcp'"),
        ([calling(call(""))], "messages[0].tool_calls[0].function.name", "not empty"),
        ([calling({"name": 1})], "messages[0].tool_calls[0].name", "not an integer"),
        ([calling(call(id=1))], "messages[0].tool_calls[0].id", "not an integer"),
        ([calling(call("f", "{"))], "messages[0].tool_calls[0].function.arguments", "no JSON"),
        ([calling(call("f", "[]"))], "messages[0].tool_calls[0].function.arguments", "no JSON"),
        ([calling(call("f", "[" * 9999))], "messages[0].tool_calls[0].function.arguments", "JSON"),
        ([calling(call("f", [1]))], "messages[0].tool_calls[0].function.arguments", "a list"),
        (
            [calling(call("f", '{"a": "\\ud800"}'))],
            "messages[0].tool_calls[0].function.arguments.a",
            "lone surrogate",
        ),
        (
            [calling(call("f", '{"a": [NaN]}'))],
            "messages[0].tool_calls[0].function.arguments.a[0]",
            "is nan",
        ),
        (
            [{"role": "assistant", "function_call": "f"}],
            "messages[0].function_call",
            "not text",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_its_place(messages: Any, param: str, sentence: str) -> None:
    with pytest.raises(Invalid) as caught:
        normalise(messages)
    assert caught.value.param == param
    assert sentence in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


def test_limits() -> None:
    assert len(normalise([said("user")] * MAX_MESSAGES)) == MAX_MESSAGES
    with pytest.raises(TooLarge, match=f"at most {MAX_MESSAGES}") as caught:
        normalise([said("user")] * (MAX_MESSAGES + 1))
    assert caught.value.param == "messages"
