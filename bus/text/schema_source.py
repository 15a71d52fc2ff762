"""JSON text read for a schema: numbers stay exact, keys are there once."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any

from bus.text.schema_limits import MAX_DEPTH, SchemaRefused

Json = Any


def parse_json(source: str) -> Json:
    """JSON text with numbers as int or Decimal.

    Raises:
        SchemaRefused: it is no JSON, or a key is there twice.
    """
    try:
        return json.loads(
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
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:60]!r} is there twice in one object")
    return found
