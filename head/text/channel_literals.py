"""Calls whose arguments are literals: Gemma's `call:f{a:1}` and Python's `[f(a=1)]`."""

from __future__ import annotations

import ast
import json
import re

from head.text.channel_calls import bare_calls, expect
from head.text.channel_grammar import MAX_CALLS_AT_ONCE, Turn, marks_of
from head.text.channel_json import MAX_DEPTH, is_scalar
from head.text.channel_reader import Malformed, Reader, Steps
from head.text.channel_values import Arguments

# --- Gemma ---------------------------------------------------------------------------------------

_QUOTE = '<|"|>'
_GEMMA_NAME = re.compile(r"[^{}<>\s]*")
_GEMMA_KEY = re.compile(r"[^:{}\[\]<>,\n]*")
_WORD = re.compile(r"[-+.0-9A-Za-z]*")


def gemma_call(turn: Turn) -> Steps[None]:
    """Gemma's call from behind `<|tool_call>`: `call:name{key:<|"|>text<|"|>,other:1}`."""
    reader = turn.reader
    yield from expect(reader, "call:")
    name = yield from reader.word(_GEMMA_NAME)
    if name not in turn.tools:
        raise Malformed
    arguments = yield from _gemma_object(reader, 1)
    yield from reader.skip()
    if not (yield from reader.over()):
        yield from expect(reader, "<tool_call|>")
    turn.call(name, arguments)


def _gemma_object(reader: Reader, depth: int) -> Steps[str]:
    yield from expect(reader, "{")
    made = Arguments()
    yield from reader.skip()
    if (yield from reader.need()) == "}":
        return made.text() + reader.take(reader.pos + 1)[1:]
    while True:
        yield from reader.skip()
        key = yield from _gemma_key(reader)
        if not made.add(key, (yield from _gemma_value(reader, depth))):
            raise Malformed
        yield from reader.skip()
        if (yield from reader.one_of(marks_of(",", "}"))) == "}":
            return made.text()


def _gemma_key(reader: Reader) -> Steps[str]:
    if (yield from reader.need()) == "<":
        key = json.loads((yield from _gemma_text(reader)))
        yield from reader.skip()
    else:
        key = (yield from reader.word(_GEMMA_KEY)).strip()
    yield from expect(reader, ":")
    yield from reader.skip()
    return str(key)


def _gemma_value(reader: Reader, depth: int) -> Steps[str]:
    if depth >= MAX_DEPTH:
        raise Malformed
    character = yield from reader.need()
    if character == "<":
        return (yield from _gemma_text(reader))
    if character == "{":
        return (yield from _gemma_object(reader, depth + 1))
    if character == "[":
        return (yield from _gemma_list(reader, depth + 1))
    word = yield from reader.word(_WORD)
    if not is_scalar(word):
        raise Malformed
    return word


def _gemma_list(reader: Reader, depth: int) -> Steps[str]:
    yield from expect(reader, "[")
    values: list[str] = []
    yield from reader.skip()
    if (yield from reader.need()) == "]":
        return "[" + reader.take(reader.pos + 1)
    while True:
        yield from reader.skip()
        values.append((yield from _gemma_value(reader, depth)))
        yield from reader.skip()
        if (yield from reader.one_of(marks_of(",", "]"))) == "]":
            return "[" + ", ".join(values) + "]"


def _gemma_text(reader: Reader) -> Steps[str]:
    yield from expect(reader, _QUOTE)
    text, _ = yield from reader.collect(marks_of(_QUOTE))
    return json.dumps(text, ensure_ascii=False)


# --- Python --------------------------------------------------------------------------------------

_IDENTIFIER = re.compile(r"[\w.-]*")
_KEYWORD = re.compile(r"\w*")
_PLAIN = {"'": re.compile(r"[^'\\\n]*"), '"': re.compile(r'[^"\\\n]*')}
#: What a backslash makes something of.
_ESCAPED = "\n\r\\'\"abfnrtv01234567xNuU"
_WORDS = {"True": "true", "False": "false", "None": "null"}


def list_or_objects(turn: Turn) -> Steps[None]:
    """Llama 4's calls without a marker: a Python list, or JSON objects."""
    yield from turn.reader.skip()
    if (yield from turn.reader.need()) == "{":
        yield from bare_calls(turn)
    else:
        yield from PythonCalls("")(turn)


class PythonCalls:
    """`[f(a=1), g()]`: the calls are given when the list is whole, since it may be mere text."""

    __slots__ = ("_end",)

    def __init__(self, end: str) -> None:
        self._end = end

    def __call__(self, turn: Turn) -> Steps[None]:
        """Read a list."""
        reader = turn.reader
        yield from reader.skip()
        yield from expect(reader, "[")
        calls: list[tuple[str, str]] = []
        while True:
            yield from reader.skip()
            if len(calls) == MAX_CALLS_AT_ONCE:
                raise Malformed
            calls.append((yield from _python_call(turn)))
            yield from reader.skip()
            if (yield from reader.one_of(marks_of(",", "]"))) == "]":
                break
        yield from reader.skip()
        if not (yield from reader.over()):
            if not self._end:
                raise Malformed
            yield from expect(reader, self._end)
        for name, arguments in calls:
            turn.call(name, arguments)


def _python_call(turn: Turn) -> Steps[tuple[str, str]]:
    reader = turn.reader
    name = yield from reader.word(_IDENTIFIER)
    if name not in turn.tools:
        raise Malformed
    yield from expect(reader, "(")
    arguments = Arguments()
    yield from reader.skip()
    if (yield from reader.need()) == ")":
        reader.take(reader.pos + 1)
        return name, arguments.text()
    while True:
        yield from reader.skip()
        key = yield from reader.word(_KEYWORD)
        yield from reader.skip()
        yield from expect(reader, "=")
        yield from reader.skip()
        if not key or key[0].isdecimal():
            raise Malformed
        if not arguments.add(key, (yield from _python_value(reader, 1))):
            raise Malformed
        yield from reader.skip()
        if (yield from reader.one_of(marks_of(",", ")"))) == ")":
            return name, arguments.text()


def _python_value(reader: Reader, depth: int) -> Steps[str]:
    if depth >= MAX_DEPTH:
        raise Malformed
    character = yield from reader.need()
    if character in "'\"":
        return (yield from _python_text(reader))
    if character in "[{(":
        return (yield from _python_group(reader, depth))
    word = yield from reader.word(_WORD)
    word = _WORDS.get(word, word)
    if not is_scalar(word):
        raise Malformed
    return word


def _python_group(reader: Reader, depth: int) -> Steps[str]:
    """A list, a tuple or a dictionary with text as keys."""
    begin = reader.take(reader.pos + 1)
    end = {"[": "]", "{": "}", "(": ")"}[begin]
    made, values = Arguments(), list[str]()
    yield from reader.skip()
    while (yield from reader.need()) != end:
        value = yield from _python_value(reader, depth + 1)
        yield from reader.skip()
        if begin == "{":
            yield from expect(reader, ":")
            yield from reader.skip()
            of = yield from _python_value(reader, depth + 1)
            if value[:1] != '"' or not made.add(json.loads(value), of):
                raise Malformed
            yield from reader.skip()
        values.append(value)
        if (yield from reader.need()) != end:
            yield from expect(reader, ",")
            yield from reader.skip()
    reader.take(reader.pos + 1)
    return made.text() if begin == "{" else "[" + ", ".join(values) + "]"


def _python_text(reader: Reader) -> Steps[str]:
    """A string in single or double quotes, as JSON."""
    quote = reader.take(reader.pos + 1)
    parts = [quote]
    while True:
        parts.append((yield from reader.run(_PLAIN[quote])))
        character = yield from reader.need()
        if character == "\n":
            raise Malformed
        parts.append(reader.take(reader.pos + 1))
        if character == quote:
            break
        if (yield from reader.need()) not in _ESCAPED:
            # Python keeps the backslash, too, but warns of it.
            parts.append("\\")
        parts.append(reader.take(reader.pos + 1))
    try:
        value = ast.literal_eval("".join(parts))
    except (ValueError, SyntaxError):
        raise Malformed from None
    # Halves of a pair are escaped one by one, as in JSON.
    whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return json.dumps(whole, ensure_ascii=False)
