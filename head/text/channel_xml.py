"""Calls whose arguments stand between tags as bare text, typed by the tool's schema."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from head.text.channel_calls import expect, object_text
from head.text.channel_grammar import Turn, marks_of
from head.text.channel_json import NotJson, json_value, parse_json, whole_characters
from head.text.channel_reader import Ended, Malformed, Steps
from head.text.channel_values import INNER_DEPTH, Arguments, typed

_NAME = re.compile(r"[^<>\n\"]*")
_KEY = re.compile(r"[^<>\n]*")


def add_typed(turn: Turn, arguments: Arguments, name: str, key: str, text: str) -> None:
    """Add an argument that was written as bare text.

    Raises:
        Malformed: the call has it already.
    """
    if not arguments.add(key, typed(text, turn.tools.argument_types(name, key))):
        raise Malformed


# --- <function=name><parameter=key>value</parameter></function> -----------------------------------

_CLOSE = "</parameter>"
#: What may follow a function's name, and a value.
_PARTS = ("<parameter=", "</function>")
#: Ends of a value that begins on a line of its own. The last two are those of a value that the
#: model did not close.
_LINE_ENDS = ("\n</parameter>", "\n<parameter=", "\n</function>")


@dataclass(frozen=True)
class FunctionCall:
    """Qwen3-Coder's call from behind `<function=`, with the tag that ends it.

    Other models write a JSON object between the function's tags, which is read, too.

    Attributes:
        end: the tag; empty: there is none.
    """

    end: str = "</tool_call>"

    def __call__(self, turn: Turn) -> Steps[None]:
        """Read a call."""
        reader = turn.reader
        name = (yield from reader.word(_NAME)).strip()
        if name not in turn.tools:
            raise Malformed
        yield from expect(reader, ">")
        yield from reader.skip()
        if (yield from reader.need()) == "{":
            turn.call(name, (yield from self._json_arguments(turn)))
        else:
            turn.call(name, (yield from self._arguments(turn, name)))
        yield from reader.skip()
        if self.end and (yield from reader.more()):
            yield from expect(reader, self.end)

    def _json_arguments(self, turn: Turn) -> Steps[str]:
        text = object_text((yield from json_value(turn.reader)))
        yield from turn.reader.skip()
        yield from expect(turn.reader, "</function>")
        return text

    def _arguments(self, turn: Turn, name: str) -> Steps[str]:
        reader, arguments = turn.reader, Arguments()
        part = yield from reader.one_of(marks_of(*_PARTS))
        while part == "<parameter=":
            key = (yield from reader.word(_KEY)).strip()
            yield from expect(reader, ">")
            value, part = yield from _value(turn)
            add_typed(turn, arguments, name, key, value)
            if not part:
                yield from reader.skip()
                part = yield from reader.one_of(marks_of(*_PARTS))
        return arguments.text()


def _value(turn: Turn) -> Steps[tuple[str, str]]:
    """A value, and what was read of what follows it."""
    reader = turn.reader
    if (yield from reader.need()) != "\n":
        value, _ = yield from reader.collect(marks_of(_CLOSE))
        return value, ""
    value, end = yield from reader.collect(marks_of(*_LINE_ENDS))
    part = end[1:] if end[1:] != _CLOSE else ""
    if part:
        value = value.removesuffix(_CLOSE)
    return value[1:], part


# --- <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call> ---------------

_GLM_END = "</tool_call>"


def glm_call(turn: Turn) -> Steps[None]:
    """GLM's call from behind `<tool_call>`."""
    reader = turn.reader
    yield from reader.skip()
    name = (yield from reader.word(_NAME)).strip()
    if name not in turn.tools:
        raise Malformed
    arguments = Arguments()
    while True:
        yield from reader.skip()
        if (yield from reader.one_of(marks_of("<arg_key>", _GLM_END))) == _GLM_END:
            break
        key = (yield from reader.word(_KEY)).strip()
        yield from expect(reader, "</arg_key>")
        yield from reader.skip()
        yield from expect(reader, "<arg_value>")
        value, whole = yield from _glm_value(turn)
        add_typed(turn, arguments, name, key, value)
        if not whole:
            break
    turn.call(name, arguments.text())


def _glm_value(turn: Turn) -> Steps[tuple[str, bool]]:
    """A value, and whether it was closed. One that was not ends with the call, and the answer.

    Raises:
        Malformed: another value begins in it, so it is not known where it ends.
    """
    reader = turn.reader
    parts: list[str] = []
    marker = yield from reader.until(marks_of("</arg_value>", "<arg_value>"), parts.append)
    value = "".join(parts)
    if marker == "</arg_value>":
        return value, True
    if marker:
        raise Malformed
    if reader.cut or not value.rstrip().endswith(_GLM_END):
        raise Ended
    return value.rstrip().removesuffix(_GLM_END), False


# --- <invoke name="f"><parameter name="k">value</parameter></invoke> ------------------------------


_QUOTE, _UNQUOTE = "<![CDATA[", "]]>"


@dataclass(frozen=True)
class Invoke:
    """A call with its name and keys in attributes, from behind `<invoke name="`.

    Attributes:
        end: of the call.
        parameter: what an argument begins with, up to its name.
        close: of an argument.
        quoted: whether a value may stand in `<![CDATA[...]]>`, which is no part of it.
    """

    end: str
    parameter: str
    close: str
    quoted: bool = False

    def __call__(self, turn: Turn) -> Steps[None]:
        """Read a call."""
        reader = turn.reader
        name = yield from reader.word(_NAME)
        if name not in turn.tools:
            raise Malformed
        yield from expect(reader, '"')
        yield from reader.skip(" ")
        arguments = Arguments()
        if (yield from reader.one_of(marks_of(">", "/>"))) == ">":
            while True:
                yield from reader.skip()
                if (yield from reader.one_of(marks_of(self.parameter, self.end))) == self.end:
                    break
                yield from self._argument(turn, name, arguments)
        turn.call(name, arguments.text())

    def _argument(self, turn: Turn, name: str, arguments: Arguments) -> Steps[None]:
        reader = turn.reader
        key = yield from reader.word(_NAME)
        how = yield from reader.one_of(marks_of('">', '" string="true">', '" string="false">'))
        value = yield from self._value(turn)
        if how == '">':
            add_typed(turn, arguments, name, key, value)
        elif not arguments.add(key, as_json(value) if "false" in how else as_text(value)):
            raise Malformed

    def _value(self, turn: Turn) -> Steps[str]:
        value, close = yield from turn.reader.collect(marks_of(self.close))
        if not self.quoted or not value.startswith(_QUOTE):
            return value
        parts = [value]
        while not parts[-1].endswith(_UNQUOTE):
            more, close = yield from turn.reader.collect(marks_of(self.close))
            parts += (close, more)
        return "".join(parts)[len(_QUOTE) : -len(_UNQUOTE)]


def as_text(value: str) -> str:
    """A text as JSON."""
    return json.dumps(value, ensure_ascii=False)


def as_json(value: str) -> str:
    """A text that is JSON.

    Raises:
        Malformed: it is none.
    """
    value = whole_characters(value)
    try:
        parse_json(value, INNER_DEPTH)
    except NotJson:
        raise Malformed from None
    return value.strip()


# --- Kimi K3 -------------------------------------------------------------------------------------

_ATTRIBUTE = re.compile(r"[^<>\n\"]*")
_K3_CLOSE = "<|close|>argument<|sep|>"
_K3_NEXT = ('<|open|>argument key="', "<|close|>call<|sep|>")


def kimi3_call(turn: Turn) -> Steps[None]:
    """Kimi K3's call from behind `<|open|>call tool="`."""
    reader = turn.reader
    name = unescaped((yield from reader.word(_ATTRIBUTE)))
    if name not in turn.tools:
        raise Malformed
    yield from expect(reader, '"')
    yield from reader.word(_ATTRIBUTE)
    while (yield from reader.one_of(marks_of('"', "<|sep|>"))) == '"':
        yield from reader.word(_ATTRIBUTE)
    arguments = Arguments()
    marker = yield from reader.one_of(marks_of(*_K3_NEXT))
    while marker == _K3_NEXT[0]:
        key = unescaped((yield from reader.word(_ATTRIBUTE)))
        yield from expect(reader, '" type="')
        kind = yield from reader.word(_ATTRIBUTE)
        yield from expect(reader, '"<|sep|>')
        # A value may tell of the end of a value; it ends where another or the call's end follows.
        value, end = yield from reader.collect(marks_of(*(_K3_CLOSE + part for part in _K3_NEXT)))
        if not arguments.add(key, as_text(value) if kind == "string" else as_json(value)):
            raise Malformed
        marker = end.removeprefix(_K3_CLOSE)
    turn.call(name, arguments.text())


def unescaped(text: str) -> str:
    """An attribute's text."""
    pairs: Sequence[tuple[str, str]] = (
        ("&quot;", '"'),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    )
    for written, meant in pairs:
        text = text.replace(written, meant)
    return text
