"""Schemas of JSON in which no text has a tag in it that would end the value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from head.text.channel_structural import SILENT

_SCALARS = ("integer", "number", "boolean", "null")
#: Formats of text that has no `<` in it.
_TAME_FORMATS = ("date", "time", "date-time", "duration", "uuid", "ipv4", "ipv6")
_OF_LISTS = SILENT | {"items", "minItems", "maxItems"}
_OF_OBJECTS = SILENT | {"properties", "required", "additionalProperties"}
#: More are none of JSON's.
_MOST_TYPES = 8
_SPECIAL = frozenset(r"\^$.*+?()[]{}|/-")


def without(schema: Any, tags: Sequence[str]) -> dict[str, Any] | None:
    """A schema like another, of whose values no text has one of some tags in it.

    Args:
        schema: of JSON.
        tags: each has a `<` at its beginning, and no other. Without any all schemas are fine.

    Returns:
        None where it can not be asked for.
    """
    if not isinstance(schema, Mapping):
        return None
    if not tags:
        return dict(schema)
    named, parts = schema.get("type"), schema.get("anyOf")
    if isinstance(named, list) and "anyOf" not in schema:
        return without({"anyOf": [{**schema, "type": name} for name in named[:_MOST_TYPES]]}, tags)
    if isinstance(parts, list):
        found = [without(part, tags) for part in parts]
        fits = not schema.keys() - SILENT - {"anyOf"} and None not in found
        return {**schema, "anyOf": found} if fits else None
    if "enum" in schema or "const" in schema:
        written = json.dumps([schema.get("enum"), schema.get("const")], ensure_ascii=False)
        return None if any(tag in written for tag in tags) else dict(schema)
    make = _MAKERS.get(named) if isinstance(named, str) else None
    return None if make is None else make(schema, tags)


def _scalar(schema: Mapping[str, Any], _: Sequence[str]) -> dict[str, Any] | None:
    return dict(schema)


def _text(schema: Mapping[str, Any], tags: Sequence[str]) -> dict[str, Any] | None:
    more = schema.keys() - SILENT
    if more == {"format"} and schema["format"] in _TAME_FORMATS:
        return dict(schema)
    return None if more else {**schema, "pattern": pattern_without(tuple(tags))}


def _list(schema: Mapping[str, Any], tags: Sequence[str]) -> dict[str, Any] | None:
    items = without(schema.get("items"), tags)
    return None if items is None or schema.keys() - _OF_LISTS else {**schema, "items": items}


def _object(schema: Mapping[str, Any], tags: Sequence[str]) -> dict[str, Any] | None:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or schema.keys() - _OF_OBJECTS:
        return None
    if schema.get("additionalProperties", False) is not False:
        return None
    found = {name: without(part, tags) for name, part in properties.items()}
    if None in found.values() or any(tag in name for tag in tags for name in found):
        return None
    return {**schema, "properties": found, "additionalProperties": False}


_MAKERS = {
    **dict.fromkeys(_SCALARS, _scalar),
    "string": _text,
    "array": _list,
    "object": _object,
}


@lru_cache(maxsize=64)
def pattern_without(tags: tuple[str, ...]) -> str:
    """A regular expression of ECMA-262 for all texts without some tags in them.

    Args:
        tags: each has a `<` at its beginning, and no other.
    """
    return rf"^[^<]*(?:<{_not_on([tag[1:] for tag in tags])})*$"


def _not_on(rests: Sequence[str]) -> str:
    """What may follow a part of a tag up to the next `<`, so that the tag is not whole."""
    going_on: dict[str, list[str]] = {}
    for rest in rests:
        going_on.setdefault(rest[0], []).append(rest[1:])
    firsts = "".join(map(_escaped, going_on))
    sides = [f"[^<{firsts}][^<]*"]
    for first, others in going_on.items():
        # A tag that is whole here may not be.
        if "" not in others:
            sides.append(_escaped(first) + _not_on(others))
    return f"(?:{'|'.join(sides)})?"


def _escaped(character: str) -> str:
    return f"\\{character}" if character in _SPECIAL else character
