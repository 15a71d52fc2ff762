"""Calls of tools in chat messages, made into one form.

Clients send the arguments of a call as JSON text, as models write them, or as a map. Of templates,
some write a map as JSON and some write what they get. `Arguments` serves both: it is a map, and as
text it is its JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from bus.errors import Invalid
from bus.fields import kind_of
from head.json_values import check_json, check_text
from head.text.channel_json import NotJson, parse_json

Message = dict[str, Any]
#: Letters of an identifier or a name that comes with messages.
_MAX_NAME = 256


class Arguments(dict[str, Any]):
    """The arguments of a call.

    Args:
        values: the map.
        text: its JSON text, as the model or the client wrote it.
    """

    # Begins with an underscore: templates can not reach it, whatever arguments are named.
    __slots__ = ("_text",)

    def __init__(self, values: Mapping[str, Any], text: str) -> None:
        super().__init__(values)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: object) -> str:
        return self._text + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: object) -> str:
        return other + self._text if isinstance(other, str) else NotImplemented


def read_calls(calls: object, where: str) -> list[Message]:
    """The calls of an assistant's message; `arguments` of each is an `Arguments`.

    Raises:
        Invalid: `param` names the place, such as `messages[1].tool_calls[0].function.name`.
    """
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise Invalid(f"{where} should be a list of calls, not {kind_of(calls)}", param=where)
    return [read_call(call, f"{where}[{place}]") for place, call in enumerate(calls)]


def read_call(call: object, where: str) -> Message:
    """One call.

    Raises:
        Invalid: `param` names the place.
    """
    if not isinstance(call, Mapping):
        raise Invalid(
            f"{where} should be a map {{id, type: function, function: {{name, arguments}}}}, not "
            f"{kind_of(call)}",
            param=where,
        )
    kind = call.get("type")
    if kind not in (None, "function"):
        raise Invalid(
            f"{where}.type is {shown(kind)}; calls of type function only are served",
            param=f"{where}.type",
        )
    inner, place = call.get("function"), f"{where}.function"
    if inner is None and "name" in call:
        inner, place = call, where
    if not isinstance(inner, Mapping):
        raise Invalid(
            f"{place} should be a map with name and arguments, not {_empty_or_kind(inner)}",
            param=place,
        )
    function = {
        "name": check_identifier(inner.get("name"), f"{place}.name"),
        "arguments": _arguments(inner.get("arguments"), f"{place}.arguments"),
    }
    found: Message = {"type": "function", "function": function}
    if call.get("id") is not None:
        found = {"id": check_identifier(call["id"], f"{where}.id"), **found}
    return found


def is_identifier(value: object) -> TypeGuard[str]:
    """Whether a value has the length of an identifier of a call, or of the name of who speaks."""
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME


def check_identifier(value: object, where: str) -> str:
    """An identifier of a call, or the name of who speaks, as whole text.

    Raises:
        Invalid: it is none.
    """
    if not is_identifier(value):
        wrong = "longer" if isinstance(value, str) and value else _empty_or_kind(value)
        raise Invalid(
            f"{where} should be text of 1 to {_MAX_NAME} letters, not {wrong}", param=where
        )
    return check_text(value, where)


def _arguments(arguments: object, where: str) -> Arguments:
    """None and an empty text, as some models write them, are no arguments."""
    if arguments is None or arguments == "":
        return Arguments({}, "{}")
    if isinstance(arguments, Mapping):
        values = check_json(arguments, where)
        return Arguments(values, json.dumps(values, ensure_ascii=False))
    if not isinstance(arguments, str):
        raise Invalid(
            f"{where} should be a map or its JSON text, not {kind_of(arguments)}", param=where
        )
    check_text(arguments, where)
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise _no_object(where, "")
    values = check_json(values, where)
    try:
        # As of a model's call: each can be sent back, and no other is.
        parse_json(arguments)
    except NotJson as error:
        raise _no_object(where, f": {error!s:.200}") from None
    # Programs escape what models write as it is; other text stays, to the letter.
    escaped = "\\u" in arguments
    return Arguments(values, json.dumps(values, ensure_ascii=False) if escaped else arguments)


def _no_object(where: str, why: str) -> Invalid:
    return Invalid(
        f"{where} is text that is no JSON object{why}; send what was written as content instead",
        param=where,
    )


def _empty_or_kind(value: object) -> str:
    if value is None:
        return "missing"
    return "empty" if value == "" else kind_of(value)


def shown(value: object) -> str:
    """A wrong value in a message: text quoted and cut, others by their kind."""
    if value is None:
        return "missing"
    if isinstance(value, str):
        return ascii(value if len(value) <= 40 else value[:40] + "...")
    return kind_of(value)
