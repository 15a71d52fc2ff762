"""Calls that are JSON objects: `{"name": ..., "arguments": {...}}`, alone, in lists, in tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from head.text.channel_grammar import CallGrammar, Turn, marks_of
from head.text.channel_json import (
    NotJson,
    json_string,
    json_value,
    parse_json,
    whole_characters,
)
from head.text.channel_reader import Malformed, Reader, Steps

#: What each key of a call is. Those that some models add and that say nothing are themselves.
_KEYS = {
    "name": "name",
    "tool_name": "name",
    "arguments": "arguments",
    "parameters": "arguments",
    "id": "id",
    "type": "type",
    "tool_call_id": "tool_call_id",
}
_NEXT = marks_of(",", "}")
_LIST_NEXT = marks_of(",", "]")
#: A tool's name, or a call's id.
_NAME = re.compile(r"[^\[\]{}<>\n]*")


def expect(reader: Reader, text: str) -> Steps[None]:
    """Read a text that has to stand here.

    Raises:
        Malformed: another does.
    """
    yield from reader.one_of(marks_of(text))


def object_text(text: str) -> str:
    """Arguments as a JSON object's text, from the text of a JSON value.

    Null and an empty text are none; a text that is JSON itself, which some models write, is taken
    for what is in it.

    Raises:
        Malformed: it is no object, has a key twice, or a number that is too long or too large.
    """
    try:
        text = whole_characters(text)
        value = parse_json(text)
        if isinstance(value, str) and value.strip():
            text = whole_characters(value.strip())
            value = parse_json(text)
    except NotJson:
        raise Malformed from None
    if value is None or value == "" or value == {}:
        return "{}"
    if not isinstance(value, dict):
        raise Malformed
    return text


def call_object(
    turn: Turn, *, needs_arguments: bool = False, opened: bool = False
) -> Steps[tuple[str, str]]:
    """Name and arguments of the call that stands here.

    Args:
        needs_arguments: a call without them is none.
        opened: its brace was read.

    Raises:
        Malformed: it is none, or of a tool that was not given; raised as soon as that is sure.
    """
    reader = turn.reader
    if not opened:
        yield from expect(reader, "{")
    name = arguments = None
    seen: set[str] = set()
    while True:
        key = yield from _call_key(reader)
        if key in seen:
            raise Malformed
        seen.add(key)
        if key == "name":
            name = json.loads((yield from json_string(reader)))
            if name not in turn.tools:
                raise Malformed
        else:
            value = yield from json_value(reader)
            if key == "arguments":
                arguments = object_text(value)
        yield from reader.skip()
        if (yield from reader.one_of(_NEXT)) == "}":
            break
    if name is None or (arguments is None and needs_arguments):
        raise Malformed
    return name, arguments or "{}"


def _call_key(reader: Reader) -> Steps[str]:
    """What the key that comes next is, read up to its value."""
    yield from reader.skip()
    key = _KEYS.get(json.loads((yield from json_string(reader))))
    if key is None:
        raise Malformed
    yield from reader.skip()
    yield from expect(reader, ":")
    yield from reader.skip()
    return key


def tagged_call(end: str, other: Mapping[str, CallGrammar] | None = None) -> CallGrammar:
    """One call, and the tag that ends it; the end of the answer does, too.

    Args:
        other: what reads a call that is no object, by the marker that it begins with.
    """
    begins = marks_of("{", *(other or ()))

    def read(turn: Turn) -> Steps[None]:
        yield from turn.reader.skip()
        if other and (begin := (yield from turn.reader.one_of(begins))) != "{":
            yield from other[begin](turn)
        else:
            name, arguments = yield from call_object(turn, opened=bool(other))
            yield from turn.reader.skip()
            if not (yield from turn.reader.over()):
                yield from expect(turn.reader, end)
            turn.call(name, arguments)

    return read


def object_call(turn: Turn) -> Steps[None]:
    """One call, which ends with its object."""
    yield from turn.reader.skip()
    name, arguments = yield from call_object(turn)
    turn.call(name, arguments)


def listed_calls(end: str = "") -> CallGrammar:
    """Calls in a JSON list, or one after another, and the tag that ends them if there is one.

    Each is given when it is whole.
    """

    def read(turn: Turn) -> Steps[None]:
        yield from turn.reader.skip()
        if (yield from turn.reader.need()) == "{" and end:
            marker = yield from turn.reader.one_of(marks_of("{"))
            while marker == "{":
                name, arguments = yield from call_object(turn, opened=True)
                turn.call(name, arguments)
                yield from turn.reader.skip()
                if (yield from turn.reader.over()):
                    return
                marker = yield from turn.reader.one_of(marks_of("{", end))
            return
        yield from call_list(turn)
        if end:
            yield from turn.reader.skip()
            if not (yield from turn.reader.over()):
                yield from expect(turn.reader, end)

    return read


def keyed_calls(end: str) -> CallGrammar:
    """Apertus' calls: a list of objects with the tool's name as the one key."""

    def read(turn: Turn) -> Steps[None]:
        reader = turn.reader
        yield from expect(reader, "[")
        marker = ","
        while marker == ",":
            yield from reader.skip()
            yield from expect(reader, "{")
            yield from reader.skip()
            name = json.loads((yield from json_string(reader)))
            yield from reader.skip()
            yield from expect(reader, ":")
            arguments = yield from _arguments_of(turn, name)
            yield from expect(reader, "}")
            turn.call(name, arguments)
            yield from reader.skip()
            marker = yield from reader.one_of(_LIST_NEXT)
        if not (yield from reader.over()):
            yield from expect(reader, end)

    return read


def call_list(turn: Turn) -> Steps[None]:
    """Calls in a JSON list; each is given when it is whole."""
    yield from expect(turn.reader, "[")
    yield from turn.reader.skip()
    while True:
        name, arguments = yield from call_object(turn)
        turn.call(name, arguments)
        yield from turn.reader.skip()
        if (yield from turn.reader.one_of(_LIST_NEXT)) == "]":
            return
        yield from turn.reader.skip()


def bare_calls(turn: Turn) -> Steps[None]:
    """Llama's calls: objects one after another, with white space or `;` between them."""
    reader = turn.reader
    yield from reader.skip()
    while True:
        name, arguments = yield from call_object(turn, needs_arguments=True)
        turn.call(name, arguments)
        yield from reader.skip(" \t\r\n;")
        if not (yield from reader.more()):
            return


def mistral_calls(turn: Turn) -> Steps[None]:
    """What follows `[TOOL_CALLS]`: a list of calls, or `name[ARGS]{...}`, with an id or without."""
    reader = turn.reader
    yield from reader.skip(" ")
    if (yield from reader.need()) in "[{":
        if (yield from reader.need()) == "{":
            yield from bare_calls(turn)
        else:
            yield from call_list(turn)
        return
    name = (yield from reader.word(_NAME)).strip()
    if name not in turn.tools:
        raise Malformed
    marker = ""
    if (yield from reader.need()) == "[":
        marker = yield from reader.one_of(marks_of("[ARGS]", "[CALL_ID]"))
    if marker == "[CALL_ID]":
        yield from reader.word(_NAME)
        yield from expect(reader, "[ARGS]")
    yield from reader.skip()
    turn.call(name, object_text((yield from json_value(reader))))


def deepseek_call(turn: Turn) -> Steps[None]:
    """`function<sep>name`, a line end and fenced JSON, or `name<sep>{...}` since V3.1."""
    reader = turn.reader
    name = (yield from reader.word(_NAME)).strip()
    yield from expect(reader, "<｜tool▁sep｜>")
    if name == "function" and (yield from reader.need()) != "{":
        name = (yield from reader.word(_NAME)).strip()
        yield from expect(reader, "\n```json")
        arguments = yield from _arguments_of(turn, name)
        yield from expect(reader, "```")
    else:
        arguments = yield from _arguments_of(turn, name)
    yield from expect(reader, "<｜tool▁call▁end｜>")
    turn.call(name, arguments)


def kimi_call(turn: Turn) -> Steps[None]:
    """`functions.name:0<|tool_call_argument_begin|>{...}`."""
    reader = turn.reader
    named = (yield from reader.word(_NAME)).strip()
    yield from expect(reader, "<|tool_call_argument_begin|>")
    name = re.sub(r":[0-9]+\Z", "", named).removeprefix("functions.")
    if named in turn.tools:
        name = named
    arguments = yield from _arguments_of(turn, name)
    yield from expect(reader, "<|tool_call_end|>")
    turn.call(name, arguments)


def _arguments_of(turn: Turn, name: str) -> Steps[str]:
    """The object that follows a name, and the white space around it."""
    if name not in turn.tools:
        raise Malformed
    yield from turn.reader.skip()
    arguments = object_text((yield from json_value(turn.reader)))
    yield from turn.reader.skip()
    return arguments


def solar_call(turn: Turn) -> Steps[None]:
    """`id<|tool_call:name|>name<|tool_call:args|>{...}<|tool_call:end|>`."""
    reader = turn.reader
    yield from reader.word(_NAME)
    yield from expect(reader, "<|tool_call:name|>")
    name = (yield from reader.word(_NAME)).strip()
    yield from expect(reader, "<|tool_call:args|>")
    arguments = yield from _arguments_of(turn, name)
    yield from expect(reader, "<|tool_call:end|>")
    turn.call(name, arguments)
