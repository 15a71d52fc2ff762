"""Tool calls of an answer, and the tools that it may call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from head.text.channel_values import MAX_LOOKED_AT, Budget, types_of

#: What is looked at for the types of all arguments of an answer's calls: the head's loop does it.
MAX_LOOKED_AT_IN_ALL = 50 * MAX_LOOKED_AT


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call.

    Attributes:
        index: place among the answer's calls, from 0.
        id: tells it from all others.
        name: of a tool that was given.
        arguments: a JSON object as text; `{}` when there are none.
    """

    index: int
    id: str
    name: str
    arguments: str


class Tools:
    """The tools of a request by name. Of a name that is given twice the first counts.

    Args:
        tools: maps with `name` and `parameters`, or with those under `function`.
    """

    __slots__ = ("_left", "_schemas", "_types")

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self._schemas: dict[str, Mapping[str, Any]] = {}
        #: What was found of arguments, by tool and argument.
        self._types: dict[tuple[str, str], frozenset[str]] = {}
        self._left = MAX_LOOKED_AT_IN_ALL
        for tool in tools:
            inner = tool.get("function", tool)
            if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
                continue
            schema = inner.get("parameters")
            self._schemas.setdefault(inner["name"], schema if isinstance(schema, Mapping) else {})

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """The schema of each tool's arguments."""
        return self._schemas

    def schema(self, name: str) -> Mapping[str, Any]:
        """The schema of a tool's arguments; empty when it has none."""
        return self._schemas.get(name, {})

    def argument_types(self, name: str, argument: str) -> frozenset[str]:
        """The types that a tool's schema allows one argument."""
        found = self._types.get((name, argument))
        if found is None:
            schema = self.schema(name)
            properties = schema.get("properties")
            if not isinstance(properties, Mapping) or argument not in properties:
                return types_of({}, schema)
            most = min(self._left, MAX_LOOKED_AT)
            budget = Budget(most)
            found = types_of(properties[argument], schema, budget)
            self._left -= most - budget.left
            self._types[name, argument] = found
        return found
