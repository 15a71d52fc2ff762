"""Constraints under which an answer calls tools in its format: tags of the kind `structural`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: A tag of the constraint, from a tool's name and the schema of its arguments; None when it has
#: arguments that the format can not be held to.
MakeTag = Callable[[str, Mapping[str, Any]], dict[str, Any] | None]
#: A tool's name that means the same in every format.
_NAME = re.compile(r"[\w.:/-]+")
#: Types whose JSON is also how Qwen3-Coder writes them; text is written bare.
_TYPES = ("integer", "number", "boolean", "null", "object", "array")
#: Keys of a schema that ask for nothing but a type.
_SILENT = frozenset({"type", "title", "description", "default", "examples", "$comment"})
#: Keys of the schema of all arguments that are held to by writing those that it names, in order.
_HELD = _SILENT | {"properties", "required", "additionalProperties", "strict", "$schema", "$id"}
#: What ends a value that stands on lines of its own.
_ENDS = ("\n</parameter>", "\n<parameter=", "\n</function>")
_CLOSE = json.dumps("\n</parameter>")
#: Bare text with what ends it. It has nothing else in it that would end it.
_BARE = (
    r"FREE: /(?s:.*)/ & ~/(?s:.*)\n<(?:\/function>|parameter=)(?s:.*)/"
    r" & ~/<(?:\/function>|\/parameter>|parameter=)(?s:.*)/",
    "bare[lazy]: FREE " + _CLOSE,
)


@dataclass(frozen=True)
class Around:
    """A tag for calls whose arguments are one JSON object; `{name}` stands for the tool."""

    begin: str
    end: str

    def __call__(self, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The tag of one tool."""
        return {
            "begin": self.begin.replace("{name}", name),
            "schema": {"type": "object", **_closed(schema)},
            "end": self.end,
        }


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema of arguments that says nothing of further ones, without further ones.

    A model makes them up where it may, and functions do not take them.
    """
    if "properties" not in schema or "additionalProperties" in schema or schema.keys() - _HELD:
        return schema
    return {**schema, "additionalProperties": False}


def function_tag(name: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The tag of one tool in Qwen3-Coder's format: its arguments in the order of the schema.

    None for a schema that asks for more than can be held to.
    """
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    lines, order = list[str](), list[str]()
    if schema.keys() - _HELD or not needed <= set(properties):
        return None
    for number, (key, part) in enumerate(properties.items()):
        value = _bare_value(part)
        if value is None or not _tame(key):
            return None
        begin = json.dumps(f"<parameter={key}>\n", ensure_ascii=False)
        lines.append(f'part_{number}: {begin} {value} "\\n"')
        order.append(f"part_{number}" if key in needed else f"part_{number}?")
    lines.append(f"start: {' '.join(order) or json.dumps('')}")
    return {
        "begin": f"<tool_call>\n<function={name}>\n",
        "lark": "\n".join((*_BARE, *lines) if any(" bare " in line for line in lines) else lines),
        "end": "</function>\n</tool_call>",
    }


def _tame(key: Any) -> bool:
    """Whether a key can stand in a tag."""
    return isinstance(key, str) and key == key.strip() and not set(key) & set("<>\n") and key != ""


def _bare_value(schema: Any) -> str | None:
    """How an argument and what closes it are written, as a part of a Lark rule."""
    if not isinstance(schema, Mapping):
        return None
    named, choices = schema.get("type"), schema.get("enum")
    if named == "string" and isinstance(choices, list):
        if schema.keys() - _SILENT - {"enum"} or not choices or not all(map(_is_choice, choices)):
            return None
        texts = (json.dumps(text, ensure_ascii=False) for text in choices)
        return f"({' | '.join(texts)}) {_CLOSE}"
    parts = schema.get("anyOf", [schema] if isinstance(named, str) else None)
    if isinstance(named, list) and "anyOf" not in schema:
        if len(named) > len(_TYPES) + 1:
            return None
        parts = [{**schema, "type": name} for name in named]
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        return None
    types = [part.get("type") for part in parts]
    if "string" in types:
        # Any text is of one of these types, if they ask for nothing else.
        beside = schema.keys() - _SILENT - {"anyOf"} if "anyOf" in schema else ()
        return None if beside or any(part.keys() - _SILENT for part in parts) else "bare"
    if not types or any(name not in _TYPES for name in types):
        return None
    return f"%json {json.dumps(schema, ensure_ascii=False)} {_CLOSE}"


def _is_choice(text: Any) -> bool:
    """Whether bare text can be held to be this, and is then taken for it."""
    return isinstance(text, str) and bool(text.strip()) and not any(e in f"\n{text}" for e in _ENDS)


def constraint(
    tools: Mapping[str, Mapping[str, Any]], make: MakeTag, *, parallel: bool
) -> dict[str, Any] | None:
    """The source of a constraint under which one of these tools is called, or more."""
    if not all(_NAME.fullmatch(name) for name in tools):
        return None
    tags = [make(name, schema) for name, schema in tools.items()]
    if not tags or any(tag is None for tag in tags):
        return None
    return {"tags": tags, "at_least_one": True, "stop_after_first": not parallel}
