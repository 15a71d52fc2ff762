"""The tools that a chat may call, as clients send them, made into one form or refused by name.

A tool comes as `{"type": "function", "function": {...}}` or as the inner map alone. Templates,
constraints and the parsing of calls all work from the form that `read_tools` gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import msgpack

from bus.errors import Invalid, TooLarge
from bus.fields import kind_of
from bus.messages.text import MAX_TOOLS_BYTES
from head.json_values import as_param, check_json, check_text, shorten

#: A name is written into prompts and parsed out of answers.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_TOOLS = 256
#: Values in all of them: the head looks through them in its loop, which goes on within 20 ms.
MAX_VALUES = 10_000
#: What values are in.
_HOLDERS = (dict, list, tuple)


class Tool(TypedDict):
    """A tool in the one form.

    `description` is empty when there is none; `parameters` is always a JSON schema of an object,
    one without properties when the function takes nothing.
    """

    name: str
    description: str
    parameters: dict[str, Any]


def read_tools(tools: object, param: str = "tools", *, measured: bool = False) -> tuple[Tool, ...]:
    """The tools of a request; none for None and for an empty list.

    Args:
        tools: as the client sent them.
        param: what the client calls them.
        measured: `check_size` took them.

    Raises:
        Invalid: `param` names the place, such as `tools[1].function.name`; of an integer beyond
            64 bits it names the tools.
        TooLarge: they are more than a prompt should have.
    """
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise Invalid(f"{param} should be a list of functions, not {kind_of(tools)}", param=param)
    if len(tools) > MAX_TOOLS:
        raise TooLarge(f"{param} has {len(tools)} functions; at most {MAX_TOOLS}", param=param)
    if not measured:
        check_size(tools, param)
    found = tuple(_tool(tool, f"{param}[{place}]") for place, tool in enumerate(tools))
    _refuse_duplicates(found, param)
    try:
        packed = pack_tools(found)
    except OverflowError:
        why = "has an integer beyond 64 bits, which can not be sent; leave it out"
        raise Invalid(f"{param} {why}", param=param) from None
    _check_bytes(len(packed), param)
    return found


def check_size(tools: object, param: str = "tools") -> None:
    """Refuse tools that are too large, whatever they are, before anything is made of them.

    It takes no longer than for tools that are not.

    Raises:
        TooLarge: there are more than `MAX_VALUES` values in them, or their texts are too long.
    """
    values = size = 0
    waiting = [tools]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            size += len(value if value.isascii() else value.encode("utf-8", "replace"))
            if size > MAX_TOOLS_BYTES:
                _check_bytes(size, param)
        elif isinstance(value, _HOLDERS):
            values += len(value)
            if values > MAX_VALUES:
                raise TooLarge(
                    f"{param} has more than {MAX_VALUES} values; send fewer functions or shorter "
                    "schemas",
                    param=param,
                )
            waiting += value
            if isinstance(value, dict):
                waiting += value.values()
        elif isinstance(value, bytes):
            _check_bytes(size := size + len(value), param)


def _check_bytes(size: int, param: str) -> None:
    if size > MAX_TOOLS_BYTES:
        raise TooLarge(
            f"{param} has {size} bytes or more; at most {MAX_TOOLS_BYTES} are taken: send fewer "
            "functions or shorter schemas",
            param=param,
        )


def pack_tools(tools: Iterable[Tool]) -> bytes:
    """Tools as a `RenderChat` has them."""
    packed: bytes = msgpack.packb(list(tools))
    return packed


def tool_named(tools: Iterable[Tool], name: str) -> Tool | None:
    """The tool of this name, if there is one."""
    return next((tool for tool in tools if tool["name"] == name), None)


def _tool(tool: object, where: str) -> Tool:
    if not isinstance(tool, Mapping):
        raise Invalid(
            f"{where} should be a map {{type: function, function: {{name, description, "
            f"parameters}}}}, not {kind_of(tool)}",
            param=where,
        )
    kind = tool.get("type")
    if kind is None:
        kind = "function"
    # The inner map alone has a name; a function that is missing is told by its own place.
    if "function" not in tool and "name" in tool and kind == "function":
        return _function(tool, where)
    if kind != "function":
        shown = repr(kind[:40]) if isinstance(kind, str) else kind_of(kind)
        raise Invalid(
            f"{where}.type is {shown}; tools of type function only are served",
            param=f"{where}.type",
        )
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise Invalid(
            f"{where}.function should be a map with name, description and parameters, not "
            f"{_missing(function)}",
            param=f"{where}.function",
        )
    return _function(function, f"{where}.function")


def _function(function: Mapping[str, Any], where: str) -> Tool:
    return Tool(
        name=_name(function.get("name"), f"{where}.name"),
        description=_description(function.get("description"), f"{where}.description"),
        parameters=_parameters(function.get("parameters"), f"{where}.parameters"),
    )


def _name(name: object, where: str) -> str:
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    shown = ascii(name if len(name) <= 40 else name[:40] + "...") if isinstance(name, str) else None
    raise Invalid(
        f"{where} is {shown or _missing(name)}; it should be 1 to 64 of A-Z, a-z, 0-9, _, - and .",
        param=where,
    )


def _description(text: object, where: str) -> str:
    if text is None:
        return ""
    if not isinstance(text, str):
        raise Invalid(f"{where} should be text, not {kind_of(text)}", param=where)
    return check_text(text, where)


def _parameters(schema: object, where: str) -> dict[str, Any]:
    if schema is None or schema == {}:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, Mapping):
        raise Invalid(
            f"{where} should be a JSON schema, a map, not {kind_of(schema)}; leave it out when the "
            "function takes nothing",
            param=where,
        )
    found: dict[str, Any] = check_json(schema, where)
    kind = found.get("type", "object")
    if kind != "object":
        raise Invalid(
            f"{where}.type is {kind!r:.60}; the parameters of a function are an object",
            param=f"{where}.type",
        )
    _check_properties(found, where)
    if "properties" not in found and not found.keys() & {"$ref", "oneOf", "anyOf", "allOf"}:
        found["properties"] = {}
    return found if "type" in found else {"type": "object", **found}


def _check_properties(schema: Mapping[str, Any], where: str) -> None:
    """What templates go through, and would fail on in words of their own."""
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise Invalid(
            f"{where}.properties should be a map from name to schema, not {kind_of(properties)}",
            param=f"{where}.properties",
        )
    for name, inner in properties.items():
        if not isinstance(inner, dict | bool):
            raise Invalid(
                f"{shorten(f'{where}.properties.{name}')} should be a schema, a map, not "
                f"{kind_of(inner)}",
                param=as_param(f"{where}.properties.{name}"),
            )
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise Invalid(f"{where}.required should be a list of names", param=f"{where}.required")


def _refuse_duplicates(tools: Sequence[Tool], param: str) -> None:
    seen: dict[str, int] = {}
    for place, tool in enumerate(tools):
        first = seen.setdefault(tool["name"], place)
        if first != place:
            where = f"{param}[{place}]"
            raise Invalid(
                f"{where} and {param}[{first}] are both named {tool['name']}; a call could mean "
                "either: rename one",
                param=where,
            )


def _missing(value: object) -> str:
    return "missing" if value is None else kind_of(value)
