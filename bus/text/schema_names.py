"""Patterns of property names: where they may be read more narrowly than they are meant.

A name that a pattern does not match is held to `additionalProperties` instead of the pattern's
schema. So a translation that matches fewer names would let through more, unless nothing else is
allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from bus.text.patterns import is_exact
from bus.text.schema_limits import SchemaRefused


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
