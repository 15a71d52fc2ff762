"""What is wrong with the constraint of a tool choice, told in words of the request's tools.

The constraint is made of the tools: each that may have to be called is a tag of it. Its maker does
not know them, and names the tag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from head.json_values import as_param, shorten
from head.tool_definitions import Tool

#: A tag, the place in its schema as a JSON pointer, and why.
_IN_TAG = re.compile(r".*?structural\.tags\[(\d+)\](?:#(.*?))?: (.*)", re.DOTALL)
_IN_ALL = re.compile(r".*?structural[^:]*: (.*)", re.DOTALL)
_REMEDY = "; or use the tool_choice auto"


@dataclass(frozen=True, slots=True)
class Told:
    """A refusal's sentence, and what in the request it is about."""

    message: str
    param: str


def of_tools(message: str, tools: Sequence[Tool], required: Sequence[Tool]) -> Told:
    """A refusal of a constraint that was made of tools.

    Args:
        message: of the constraint's maker.
        tools: of the request.
        required: those that the constraint has, in the order of its tags.
    """
    found = _IN_TAG.fullmatch(message)
    if found is None or int(found[1]) >= len(required):
        inner = _IN_ALL.fullmatch(message)
        why = inner[1] if inner is not None else message
        return Told(
            f"calls of these tools can not be held to their schemas: {why}{_REMEDY}", "tools"
        )
    tool = required[int(found[1])]
    place = f"tools[{tools.index(tool)}].parameters{_path(found[2] or '')}"
    return Told(
        f"calls of {tool['name']} can not be held to its schema: {shorten(place)}: {found[3]}"
        f"{_REMEDY}",
        as_param(place),
    )


def _path(pointer: str) -> str:
    """A JSON pointer as places are written; parts that are numbers are those of lists."""
    steps = (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
    return "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in steps)
