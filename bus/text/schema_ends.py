"""Whether any finite value can match a schema: one that needs itself inside itself has none.

Generation would go on with it until the window is full and never give an answer. Decided by the
least fixpoint over the definitions: a definition has a value when one can be made of what is known
to have values. Conditions on values themselves (bounds, patterns) are left to the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.text.engine_regex import matches
from bus.text.schema_limits import TYPES

Schema = Mapping[str, Any]


#: Names that are held against patterns for one schema; of more it is not asked which they match.
_MAX_QUESTIONS = 2000


def has_value(schema: Schema) -> bool:
    """Whether a finite value may exist.

    Args:
        schema: from `bus.text.json_schema.translate_schema`.
    """
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    ends = _Ends()
    while True:
        found = {
            name
            for name, definition in definitions.items()
            if name not in ends.known and ends.of(definition)
        }
        if not found:
            return ends.of(schema)
        ends.known |= found


class _Ends:
    """Which schemas may have a finite value.

    Attributes:
        known: names of definitions that have one.
    """

    def __init__(self) -> None:
        self.known: set[str] = set()
        self._asked: dict[tuple[str, str], bool | None] = {}

    def of(self, schema: Schema) -> bool:
        """Whether a schema has one, as far as is known by now."""
        if "$ref" in schema and schema["$ref"].removeprefix("#/$defs/") not in self.known:
            return False
        if not all(map(self.of, schema.get("allOf", ()))):
            return False
        for key in ("anyOf", "oneOf"):
            if key in schema and not any(map(self.of, schema[key])):
                return False
        if "const" in schema or "enum" in schema:
            return True
        types = _types(schema)
        return (
            bool(types - {"object", "array"})
            or ("object" in types and self._object(schema))
            or ("array" in types and self._array(schema))
        )

    def _object(self, schema: Schema) -> bool:
        return all(self._property(schema, name) for name in schema.get("required", ()))

    def _property(self, schema: Schema, name: str) -> bool:
        """Whether all schemas that hold for a property may have a value."""
        properties = schema.get("properties", {})
        surely = [properties[name]] if name in properties else []
        perhaps = []
        for pattern, inside in schema.get("patternProperties", {}).items():
            matched = self._matches(pattern, name)
            if matched:
                surely.append(inside)
            elif matched is None:
                perhaps.append(inside)
        if surely:
            return all(map(self.of, surely))
        return any(map(self.of, (schema.get("additionalProperties", {}), *perhaps)))

    def _matches(self, pattern: str, name: str) -> bool | None:
        asked = (pattern, name)
        if asked not in self._asked and len(self._asked) < _MAX_QUESTIONS:
            self._asked[asked] = matches(pattern, name)
        return self._asked.get(asked)

    def _array(self, schema: Schema) -> bool:
        first = schema.get("prefixItems", ())
        least = schema.get("minItems", 0)
        inside = list(first[:least])
        if least > len(inside):
            inside.append(schema.get("items", {}))
        return all(map(self.of, inside))


def _types(schema: Schema) -> set[str]:
    types = schema.get("type", TYPES)
    return {types} if isinstance(types, str) else set(types)
