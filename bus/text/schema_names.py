"""Patterns of property names: where they may be read more narrowly, or leave no name to go on with.

A name that a pattern does not match is held to `additionalProperties` instead of the pattern's
schema. So a translation that matches fewer names would let through more, unless nothing else is
allowed.

The engine writes each named property once, and then one that a pattern matches. Where the patterns
match named ones only, it goes on after a comma all the same, and nothing can follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bus.text.engine_regex import has_others
from bus.text.patterns import is_exact
from bus.text.schema_limits import SchemaRefused

#: Names held against patterns for one schema, a fraction of a millisecond each.
_MAX_QUESTIONS = 2000


def check_name_patterns(patterns: Collection[str], node: Mapping[str, Any], where: str) -> None:
    """Make sure that every reading of the patterns gives each name the same schema.

    Args:
        patterns: of `patternProperties`, checked already.
        node: the schema that they are in, as the caller gave it.
        where: of `patternProperties`.

    Raises:
        SchemaRefused: a pattern is not exact, and a name outside it would be allowed.
    """
    inexact = next((pattern for pattern in patterns if not is_exact(pattern)), None)
    if inexact is None:
        return
    closed = node.get("additionalProperties") is False and len(patterns) == 1
    properties = node.get("properties", {})
    if closed and isinstance(properties, dict) and all(map(_is_plain, properties)):
        return
    raise SchemaRefused(
        where,
        f"validators differ in what {inexact[:60]!r} matches (., \\d, \\w or \\s), so a name could "
        "slip by it; write the characters out, as in [0-9], or have one pattern and "
        "additionalProperties: false",
    )


def _is_plain(name: str) -> bool:
    """Whether all readings of a class agree on the name's characters."""
    return name.isascii() and name.isprintable()


def check_free_names(schema: Mapping[str, Any]) -> None:
    """Make sure that patterns of names match more than the properties that are named.

    Args:
        schema: from `bus.text.json_schema.translate_schema`.

    Raises:
        SchemaRefused: an object may have what its patterns match, and all of it has its own name.
    """
    nodes = list(schema_nodes(schema))
    # Schemas that hold together are as one; then any name may be beside any pattern.
    joined = any(node.get(key) for node in nodes for key in ("allOf", "anyOf", "oneOf", "$ref"))
    everywhere = {name for node in nodes for name in _named(node)} if joined else set()
    left = _MAX_QUESTIONS
    for node in nodes:
        patterns = node.get("patternProperties")
        if not isinstance(patterns, dict) or node.get("additionalProperties") != {"anyOf": []}:
            continue
        names = _named(node) | everywhere
        left -= len(patterns) * len(names)
        if left >= 0 and not has_others(list(patterns), names):
            raise SchemaRefused(
                "",
                f"patternProperties: {next(iter(patterns))[:60]!r} matches names of properties "
                "only; leave it out and give those properties its schema",
            )


def schema_nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    """A schema and all schemas inside it, and what else of it is an object."""
    if isinstance(node, dict):
        yield node
        for key, item in node.items():
            if key not in ("const", "enum"):
                yield from schema_nodes(item)
    elif isinstance(node, list):
        for item in node:
            yield from schema_nodes(item)


def _named(node: Mapping[str, Any]) -> set[str]:
    properties, required = node.get("properties", {}), node.get("required", ())
    found = set(properties) if isinstance(properties, dict) else set()
    return found | set(required) if isinstance(required, list) else found
