"""JSON text read for a schema: numbers stay exact, keys are there once."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import Any

from bus.text.schema_limits import MAX_DEPTH, SchemaRefused

Json = Any
_HALF = re.compile("[\ud800-\udfff]")
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(source: str) -> Json:
    """JSON text with numbers as int or Decimal.

    Raises:
        SchemaRefused: it is no JSON, a key is there twice, or a text has half a character.
    """
    try:
        found = json.loads(
            source,
            parse_float=_decimal,
            parse_constant=_no_constant,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise SchemaRefused("", f"it is nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:
        # Among them: an integer of more digits than Python converts.
        raise SchemaRefused("", f"it is not JSON ({str(error)[:200]})") from None
    if _ESCAPED_HALF.search(source) and _has_half(found):
        raise SchemaRefused("", "it has half a character (a lone surrogate, as in \\ud800)")
    return found


def _has_half(value: Json) -> bool:
    """Whether a text or a key has half of a pair of UTF-16, which no text can be sent with."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if _HALF.search(item):
                return True
        elif isinstance(item, dict):
            waiting += item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return False


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        # Too many digits in its exponent; refused where the number is used.
        return Decimal("NaN")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {twice[:60]!r} is there twice in one object")
    return found
