"""Numbers and literal values of a schema, as the grammar engine gets them right.

The engine reads numbers as 64-bit floats and bounds of integers as 64-bit integers. Up to 2^53
both are exact. Beyond, a bound is drawn in to 2^53, which allows less and never more, or refused
where that would turn it round.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal
from typing import Any

from bus.text.schema_limits import MAX_DEPTH, SchemaRefused

LARGEST = 2**53
#: That a float holds whatever they are.
_DIGITS = 15
#: Powers of ten beyond which a number is not worked with at all.
_LARGEST_EXPONENT = 300


def literal(value: Any, where: str, depth: int) -> Any:
    """A value of `const` or `enum` with its numbers exact.

    Raises:
        SchemaRefused: a number that would be changed, or too deep.
    """
    if depth > MAX_DEPTH:
        raise SchemaRefused(where, f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [literal(item, where, depth + 1) for item in value]
    if isinstance(value, dict):
        for key in value:
            _check_text(key, where)
        return {key: literal(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, str):
        _check_text(value, where)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return _exact(value, where)
    return value


def _check_text(text: str, where: str) -> None:
    """Refuse what only \\uXXXX can write: the engine would leave it out of the text."""
    if any((c < " " and c not in "\b\t\n\f\r") or c == "\x7f" for c in text):
        raise SchemaRefused(where, "it has a control character, which can not be written")


def lower_bound(key: str, value: Any, where: str) -> dict[str, Any]:
    """`minimum` or `exclusiveMinimum`, as `minimum`.

    Raises:
        SchemaRefused: no number, or above 2^53.
    """
    number = _number(value, where)
    if number < -LARGEST:
        return {"minimum": -LARGEST}
    if key == "exclusiveMinimum":
        number = _above(number)
    return {"minimum": _exact(number, where)}


def upper_bound(key: str, value: Any, where: str) -> dict[str, Any]:
    """`maximum` or `exclusiveMaximum`, as `maximum`.

    Raises:
        SchemaRefused: no number, or below -2^53.
    """
    number = _number(value, where)
    if number > LARGEST:
        return {"maximum": LARGEST}
    if key == "exclusiveMaximum":
        number = -_above(-number)
    return {"maximum": _exact(number, where)}


def _above(number: Decimal) -> Decimal:
    """The first number above that is let through: 1e-9 more, or what 15 digits have room for.

    The engine takes some exclusive bounds of numbers for inclusive ones ((0, 0.5], (1, 1.5)), so it
    is given inclusive ones only. Of integers it lets through all that are above, all the same.
    """
    last = number.normalize().as_tuple().exponent
    finest = -9 if not number or not isinstance(last, int) else min(-9, last - 3)
    coarsest = number.adjusted() - _DIGITS + 1 if number else finest
    unit = Decimal(1).scaleb(min(max(finest, coarsest), 0))
    return (number / unit).to_integral_value(ROUND_FLOOR) * unit + unit


def step(value: Any, where: str) -> int | float:
    """`multipleOf`.

    Raises:
        SchemaRefused: no number above 0 that can be held exactly.
    """
    number = _number(value, where)
    if number <= 0:
        raise SchemaRefused(where, "it should be above 0")
    return _exact(number, where)


def count(value: Any, where: str, most: int) -> int:
    """A whole number of at least 0, cut to one more than `most`.

    Raises:
        SchemaRefused: it is none.
    """
    number = value if isinstance(value, Decimal) else _number(value, where)
    if number.is_finite() and number > most and number.adjusted() > _LARGEST_EXPONENT:
        return most + 1
    number = _number(value, where)
    if number < 0 or number % 1:
        raise SchemaRefused(where, "it should be a whole number of at least 0")
    return int(min(number, Decimal(most + 1)))


def _number(value: Any, where: str) -> Decimal:
    if not isinstance(value, int | Decimal) or isinstance(value, bool):
        raise SchemaRefused(where, "it should be a number")
    return _workable(Decimal(value), where)


def _workable(value: Decimal, where: str) -> Decimal:
    """Refuse a number that arithmetic would fail on, or take no end of time with."""
    if not value.is_finite() or (value and abs(value.adjusted()) > _LARGEST_EXPONENT):
        raise SchemaRefused(
            where,
            "the number is too large or too small to work with; leave it out, or use one of at "
            f"most {_LARGEST_EXPONENT} digits",
        )
    return value


def _exact(given: int | Decimal, where: str) -> int | float:
    value = _workable(Decimal(given), where)
    if abs(value) <= LARGEST and value % 1 == 0:
        return int(value)
    number = float(value)
    if abs(value) > LARGEST or Decimal(repr(number)) != value:
        raise SchemaRefused(
            where,
            "the number has more digits than can be held exactly; use 15 digits or fewer, and "
            f"whole numbers up to {LARGEST}",
        )
    return number
