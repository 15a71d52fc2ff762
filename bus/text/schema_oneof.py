"""`oneOf` of sides that were made narrower: they have to exclude each other without that.

The engine takes a `oneOf` whose sides it finds to exclude each other. A side that was made
narrower (a bound, a pattern, a format) may be empty by that alone, and the others would go on with
values that two sides match. So such sides must differ in what is never made narrower: types, and
values listed by `const` or `enum`, of themselves or of a required property.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from itertools import combinations
from typing import Any

from bus.text.schema_limits import TYPES, SchemaRefused
from bus.text.schema_names import schema_nodes

Schema = Mapping[str, Any]

#: Sides of one `oneOf` that are compared with each other.
MAX_SIDES = 200
#: Schemas inside schemas that are looked into; deeper nothing is taken to differ.
_MAX_DEPTH = 8
_NARROWED = ("pattern", "minimum", "maximum")
_ALL = frozenset(name for name in TYPES if name != "integer")


def check_one_of(schema: Schema) -> None:
    """Make sure of every `oneOf` that no value of two sides is let through.

    Args:
        schema: from `bus.text.json_schema.translate_schema`.

    Raises:
        SchemaRefused: it can not be told.
    """
    definitions = schema.get("$defs", {})
    for node in schema_nodes(schema):
        sides = node.get("oneOf")
        if not isinstance(sides, list):
            continue
        judge = _Sides(definitions)
        narrowed = [judge.is_narrowed(side) for side in sides]
        if not any(narrowed):
            continue
        # The engine holds each side to what stands beside the oneOf, too.
        beside = judge.types({key: item for key, item in node.items() if key != "oneOf"})
        if len(sides) > MAX_SIDES or not all(
            judge.differ(sides[a], sides[b], beside)
            for a, b in combinations(range(len(sides)), 2)
            if narrowed[a] or narrowed[b]
        ):
            raise SchemaRefused(
                "",
                "of a oneOf it can not be told that at most one side matches; give the sides "
                "different types or different const values of a required property, or use anyOf",
            )


class _Sides:
    """Compares schemas."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def is_narrowed(self, side: Schema) -> bool:
        """Whether a keyword that may have been made narrower is in a side, or where it leads."""
        seen: set[str] = set()
        waiting: list[Schema] = [side]
        while waiting:
            for node in schema_nodes(waiting.pop()):
                if any(not isinstance(node.get(key, {}), dict) for key in _NARROWED):
                    return True
                if "patternProperties" in node:
                    return True
                name = node.get("$ref")
                if isinstance(name, str) and name not in seen:
                    seen.add(name)
                    waiting.append(self._target(name))
        return False

    def differ(self, a: Schema, b: Schema, within: frozenset[str], depth: int = 0) -> bool:
        """Whether no value of the types `within` matches both."""
        if depth > _MAX_DEPTH:
            return False
        common = self.types(a) & self.types(b) & within
        if not common:
            return True
        for one, other in ((a, b), (b, a)):
            options = one.get("anyOf", one.get("oneOf"))
            if isinstance(options, list) and all(
                self.differ(option, other, within, depth + 1) for option in options
            ):
                return True
        mine, theirs = self._values(a, depth), self._values(b, depth)
        if mine is not None and theirs is not None:
            return not mine & theirs
        return common == {"object"} and self._properties_differ(a, b, depth)

    def types(self, node: Schema, depth: int = 0) -> frozenset[str]:
        """Types that a value of a schema may have, integers among the numbers."""
        if depth > _MAX_DEPTH:
            return _ALL
        found = _ALL
        if "type" in node:
            names = node["type"] if isinstance(node["type"], list) else [node["type"]]
            found = frozenset("number" if name == "integer" else name for name in names)
        listed = _listed(node)
        if listed is not None:
            found &= frozenset(_type(value) for value in listed)
        for part in self._parts(node):
            found &= self.types(part, depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(node.get(key), list):
                sides = [self.types(side, depth + 1) for side in node[key]]
                found &= frozenset().union(*sides)
        return found

    def _parts(self, node: Schema) -> list[Schema]:
        """What holds beside a schema's own keywords."""
        parts = list(node["allOf"]) if isinstance(node.get("allOf"), list) else []
        if isinstance(node.get("$ref"), str):
            parts.append(self._target(node["$ref"]))
        return parts

    def _target(self, name: str) -> Schema:
        return self._definitions.get(name.removeprefix("#/$defs/"), {})

    def _values(self, node: Schema, depth: int) -> frozenset[str] | None:
        """Values that are listed, as keys that are equal when they are; None for no list."""
        listed = _listed(node)
        if listed is not None:
            return frozenset(map(_key, listed))
        if depth > _MAX_DEPTH:
            return None
        found = (self._values(part, depth + 1) for part in self._parts(node))
        return next((values for values in found if values is not None), None)

    def _properties_differ(self, a: Schema, b: Schema, depth: int) -> bool:
        mine, theirs = self._required(a, depth), self._required(b, depth)
        return any(
            self.differ(one, other, _ALL, depth + 1)
            for name in mine.keys() & theirs.keys()
            for one in mine[name]
            for other in theirs[name]
        )

    def _required(self, node: Schema, depth: int) -> dict[str, list[Schema]]:
        """Schemas of the properties that are required, each of which holds."""
        required, schemas = self._object(node, depth)
        return {name: schemas[name] for name in required if name in schemas}

    def _object(self, node: Schema, depth: int) -> tuple[set[str], dict[str, list[Schema]]]:
        required = set(node.get("required", ()))
        schemas = {name: [schema] for name, schema in node.get("properties", {}).items()}
        for part in self._parts(node) if depth <= _MAX_DEPTH else []:
            more, others = self._object(part, depth + 1)
            required |= more
            for name, found in others.items():
                schemas.setdefault(name, []).extend(found)
        return required, schemas


def _listed(node: Schema) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    return node["enum"] if isinstance(node.get("enum"), list) else None


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", list: "array", dict: "object", type(None): "null"}
    return kinds.get(type(value), "number")


def _key(value: Any) -> str:
    """Text that is the same for equal values; lists and objects are not told apart."""
    kind = _type(value)
    if kind == "number":
        return f"number {Decimal(repr(value)).normalize()}"
    return f"{kind} {value!r}" if kind in ("string", "boolean") else kind
