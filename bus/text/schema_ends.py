"""Whether any finite value can match a schema: one that needs itself inside itself has none.

Generation would go on with it until the window is full and never give an answer. Decided by the
least fixpoint over the definitions: a definition has a value when one can be made of what is known
to have values. Conditions on values themselves (bounds, patterns) are left to the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.text.schema_limits import TYPES

Schema = Mapping[str, Any]


def has_value(schema: Schema) -> bool:
    """Whether a finite value may exist.

    Args:
        schema: from `bus.text.json_schema.translate_schema`.
    """
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    known: set[str] = set()
    while True:
        found = {
            name
            for name, definition in definitions.items()
            if name not in known and _ends(definition, known)
        }
        if not found:
            return _ends(schema, known)
        known |= found


def _ends(schema: Schema, known: set[str]) -> bool:
    if "$ref" in schema and schema["$ref"].removeprefix("#/$defs/") not in known:
        return False
    if not all(_ends(part, known) for part in schema.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in schema and not any(_ends(part, known) for part in schema[key]):
            return False
    if "const" in schema or "enum" in schema:
        return True
    types = _types(schema)
    return (
        bool(types - {"object", "array"})
        or ("object" in types and _object_ends(schema, known))
        or ("array" in types and _array_ends(schema, known))
    )


def _types(schema: Schema) -> set[str]:
    types = schema.get("type", TYPES)
    return {types} if isinstance(types, str) else set(types)


def _object_ends(schema: Schema, known: set[str]) -> bool:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    return all(_ends(properties.get(name, others), known) for name in schema.get("required", ()))


def _array_ends(schema: Schema, known: set[str]) -> bool:
    first = schema.get("prefixItems", ())
    least = schema.get("minItems", 0)
    inside = list(first[:least])
    if least > len(inside):
        inside.append(schema.get("items", {}))
    return all(_ends(item, known) for item in inside)
