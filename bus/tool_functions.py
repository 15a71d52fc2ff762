"""Python functions as tools: what a model is told of them, from their signature and docstring.

    def weather(city: str, days: int = 1) -> str:
        \"\"\"The weather of a city.

        Args:
            city: its name.
            days: how many days ahead, 1 to 7.
        \"\"\"

becomes a function `weather` with that description, an object with the properties `city` (string)
and `days` (integer) with theirs, and `city` required.
"""

from __future__ import annotations

import enum
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bus.errors import Invalid
from bus.fields import kind_of

Function = Callable[..., Any]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PLAIN: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
#: A parameter in a docstring's "Args:": name, maybe a type, and what it is.
_ARGUMENT = re.compile(r"^\s*\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def checked_tools(tools: Any) -> tuple[list[dict[str, Any]], dict[str, Function]]:
    """Tools as they travel, and those of them that are functions here, by name.

    Args:
        tools: maps as docs/api.md has them, and Python functions.

    Raises:
        Invalid: they are no list of such, or a function can not be told to a model.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise Invalid(f"tools should be a list, not {kind_of(tools)}", param="tools")
    made: list[dict[str, Any]] = []
    functions: dict[str, Function] = {}
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        if isinstance(tool, Mapping):
            made.append(dict(tool))
        elif callable(tool):
            described = describe_function(tool, where)
            made.append({"type": "function", "function": described})
            functions[described["name"]] = tool
        else:
            raise Invalid(
                f"{where} should be a map or a Python function, not {kind_of(tool)}", param=where
            )
    return made, functions


def tool_name(tool: Mapping[str, Any]) -> str:
    """The name in a tool's map; empty when it has none."""
    inner = tool.get("function", tool)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else ""


def describe_function(function: Function, where: str = "tools") -> dict[str, Any]:
    """A function's name, description and parameters (JSON Schema).

    Args:
        where: what an error calls it.

    Raises:
        Invalid: it has no name that a model can write, takes arguments without names or of types
            that are none of JSON's, or is async.
    """
    name = _checked_name(function, where)
    description, arguments = _docstring(inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    required = []
    hints = _hints(function)
    for parameter in _parameters(function, where):
        schema = schema_of(hints.get(parameter.name, Any), f"{where}.{parameter.name}")
        if text := arguments.get(parameter.name):
            schema = {**schema, "description": text}
        properties[parameter.name] = schema
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return {"name": name, "description": description, "parameters": schema}


def _checked_name(function: Function, where: str) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{where} is a function named {name!r}; a tool's name has 1 to 64 of A-Z, a-z, 0-9, "
            "_, - and .: write it with def, under such a name",
            param=where,
        )
    if any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
        raise Invalid(
            f"{where} is an async function, which is not waited for here; give one that waits for "
            "the result itself, such as by asyncio.run",
            param=where,
        )
    return str(name)


def schema_of(annotation: Any, where: str) -> dict[str, Any]:
    """JSON Schema of a parameter's type.

    Raises:
        Invalid: a type that no JSON value has.
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return schema_of(inner[0], where)
    if annotation is Any or annotation is inspect.Parameter.empty or annotation is object:
        return {}
    if annotation in _PLAIN:
        return {"type": _PLAIN[annotation]}
    if origin is typing.Literal:
        return _choices(inner, where)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(each, where) for each in inner]}
    base = origin or annotation
    if isinstance(base, type):
        if issubclass(base, enum.Enum):
            return _choices(list(base), where)
        for plain, name in _PLAIN.items():
            if issubclass(base, plain):
                return {"type": name}
        if issubclass(base, Mapping):
            return _map_schema(inner, where)
        if issubclass(base, tuple) and inner and inner[-1] is not Ellipsis:
            return _tuple_schema(inner, where)
        if issubclass(base, Sequence) and not issubclass(base, bytes | bytearray | memoryview):
            return {"type": "array", **({"items": schema_of(inner[0], where)} if inner else {})}
    raise Invalid(
        f"{where} has the type {annotation!r}, which is none of JSON's; give the tool as a map "
        "with its JSON schema",
        param=where,
    )


def _choices(members: Iterable[Any], where: str) -> dict[str, Any]:
    values = [each.value if isinstance(each, enum.Enum) else each for each in members]
    for value in values:
        if type(value) not in _PLAIN or value != value or value in (math.inf, -math.inf):
            raise Invalid(
                f"{where} may be {value!r:.60}, which is no text, number, truth or null; give the "
                "tool as a map with its JSON schema",
                param=where,
            )
    return {"enum": values}


def _map_schema(inner: tuple[Any, ...], where: str) -> dict[str, Any]:
    if len(inner) != 2 or inner[1] is Any:
        return {"type": "object"}
    return {"type": "object", "additionalProperties": schema_of(inner[1], where)}


def _tuple_schema(inner: tuple[Any, ...], where: str) -> dict[str, Any]:
    """So many values of these types; in which order, few formats of calls can be held to."""
    schemas = [schema_of(each, where) for each in inner]
    different = [schema for n, schema in enumerate(schemas) if schema not in schemas[:n]]
    items = different[0] if len(different) == 1 else {"anyOf": different}
    return {"type": "array", "items": items, "minItems": len(inner), "maxItems": len(inner)}


def _hints(function: Function) -> dict[str, Any]:
    target = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError):
        return {}  # Types that can not be looked up from here; anything is taken for them.


def _parameters(function: Function, where: str) -> list[inspect.Parameter]:
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise Invalid(
            f"{where} is a function without a signature; give the tool as a map", param=where
        ) from None
    for parameter in found:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Invalid(
                f"{where} takes {parameter}; a model names each argument: give each a name",
                param=where,
            )
    return found


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """What is said of a function before its "Args:", and of each argument in them."""
    before, *after = re.split(r"^Args:", text, maxsplit=1, flags=re.MULTILINE)
    arguments: dict[str, str] = {}
    last, indent = "", 0
    for line in "".join(after).splitlines():
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if not depth:
            break  # The next section.
        indent = indent or depth
        match = _ARGUMENT.match(line) if depth <= indent else None
        if match:
            last = match[1]
            arguments[last] = match[2].strip()
        elif last:
            arguments[last] = f"{arguments[last]} {line.strip()}".strip()
    description = re.split(r"^(?:Returns|Raises|Yields|Examples?):", before, maxsplit=1, flags=re.M)
    return " ".join(description[0].split()), arguments
