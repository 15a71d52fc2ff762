"""Constraints under which an answer calls tools in its format: tags of the kind `structural`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: A tag of the constraint, from a tool's name and the schema of its arguments; None when it has
#: arguments that the format can not be held to.
MakeTag = Callable[[str, Mapping[str, Any]], dict[str, Any] | None]
#: A tool's name that means the same in every format.
_NAME = re.compile(r"[\w.:/-]+")
#: Keys of a schema that ask for nothing but a type.
SILENT = frozenset({"type", "title", "description", "default", "examples", "$comment"})
#: Keys of the schema of all arguments that are held to by writing those that it names, in order.
HELD = SILENT | {"properties", "required", "additionalProperties", "strict", "$schema", "$id"}


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
    if "properties" not in schema or "additionalProperties" in schema or schema.keys() - HELD:
        return schema
    return {**schema, "additionalProperties": False}


@dataclass(frozen=True)
class Calls:
    """How a format writes several calls.

    Attributes:
        open: before the first.
        close: behind the last.
        between: between two; None: line ends, or nothing.
        one: there can not be more than one.
    """

    open: str = ""
    close: str = ""
    between: str | None = None
    one: bool = False


def constraint(
    tools: Mapping[str, Mapping[str, Any]],
    make: MakeTag,
    calls: Calls,
    *,
    parallel: bool,
    before: str = "",
) -> dict[str, Any] | None:
    """The source of a constraint under which an answer is calls of these tools and nothing else.

    Args:
        before: what ends the reasoning that comes first; empty: there is none.
    """
    if not all(_NAME.fullmatch(name) for name in tools):
        return None
    tags = [make(name, schema) for name, schema in tools.items()]
    if not tags or any(tag is None for tag in tags):
        return None
    around = {"open": calls.open, "between": calls.between, "close": calls.close, "before": before}
    return {
        "tags": tags,
        "only_tags": True,
        "at_least_one": True,
        "stop_after_first": calls.one or not parallel,
        **{key: text for key, text in around.items() if text or (key == "between" and text == "")},
    }
