"""Calls that are JSON objects: `{"name": ..., "arguments": {...}}`, alone, in lists, in tags."""

from __future__ import annotations

import json
from collections.abc import Callable

from head.text.channel_grammar import CallGrammar, Turn
from head.text.channel_json import NotJson, json_string, json_value, parse_json
from head.text.channel_reader import Malformed, Marks, Reader, Steps

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
#: Keys that some models add and that say nothing.
_OTHERS = ("id", "type", "tool_call_id")


def expect(reader: Reader, text: str) -> Steps[None]:
    """Read a text that has to stand here.

    Raises:
        Malformed: another does.
    """
    yield from reader.one_of(Marks((text,)))


def object_text(text: str) -> str:
    """Arguments as a JSON object's text, from the text of a JSON value.

    Null and an empty text are none; a text that is JSON itself, which some models write, is taken
    for what is in it.

    Raises:
        Malformed: it is no object, or has a key twice.
    """
    try:
        value = parse_json(text)
        if isinstance(value, str) and value.strip():
            text = value.strip()
            value = parse_json(text)
    except NotJson:
        raise Malformed from None
    if value is None or value == "":
        return "{}"
    if not isinstance(value, dict):
        raise Malformed
    return text


def call_object(turn: Turn, *, needs_arguments: bool = False) -> Steps[tuple[str, str]]:
    """Name and arguments of the call that stands here.

    Raises:
        Malformed: it is none, or of a tool that was not given; raised as soon as that is sure.
    """
    reader = turn.reader
    yield from expect(reader, "{")
    name = arguments = None
    seen: set[str] = set()
    while True:
        yield from reader.skip()
        key = json.loads((yield from json_string(reader)))
        kind = next((kind for kind in (_NAMES, _ARGUMENTS) if key in kind), None)
        if (kind is None and key not in _OTHERS) or (kind or (key,))[0] in seen:
            raise Malformed
        seen.add((kind or (key,))[0])
        yield from reader.skip()
        yield from expect(reader, ":")
        yield from reader.skip()
        if kind is _NAMES:
            name = json.loads((yield from json_string(reader)))
            if name not in turn.tools:
                raise Malformed
        else:
            value = yield from json_value(reader)
            if kind is _ARGUMENTS:
                arguments = object_text(value)
        yield from reader.skip()
        if (yield from reader.one_of(_NEXT)) == "}":
            break
    if name is None or (arguments is None and needs_arguments):
        raise Malformed
    return name, arguments or "{}"


_NEXT = Marks((",", "}"))
_LIST_NEXT = Marks((",", "]"))


def tagged_call(end: str) -> CallGrammar:
    """One call, and the tag that ends it."""

    def read(turn: Turn, _: str) -> Steps[None]:
        yield from turn.reader.skip()
        name, arguments = yield from call_object(turn)
        yield from turn.reader.skip()
        yield from expect(turn.reader, end)
        turn.call(name, arguments)

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


#: Makes the name of a tool of what a format writes for it.
NameOf = Callable[[str], str]
