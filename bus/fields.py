"""Rules that a message's fields may state, and the checks that hold values to them.

A check takes a value as msgpack gave it and returns it as the field has it, or raises `FieldError`
with what is wrong in words that fit behind the field's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from bus.printable import printable


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds of a number."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MaxBytes:
    """Most bytes of a text (UTF-8) or bytes field."""

    limit: int


@dataclass(frozen=True, slots=True)
class MaxItems:
    """Most items of a tuple or map."""

    limit: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """The values that a field may have."""

    values: frozenset[str]


@dataclass(frozen=True, slots=True)
class OneLine:
    """A text that people read on one line: what can not be printed in it is shown as escapes."""


class FieldError(Exception):
    """A value that does not fit its field; `path` is outermost first.

    Codec.decode and from_map turn it into errors that others know.
    """

    def __init__(self, problem: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def under(self, name: str) -> FieldError:
        return FieldError(self.problem, (name, *self.path))


Convert = Callable[[Any], Any]

#: Bounds of the checks of whole numbers, so that a list of them is checked at one go.
_BOUNDS: dict[Convert, tuple[float, float]] = {}


def check_nothing(value: Any) -> Any:
    """Whoever takes the field looks at it."""
    return value


def check_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise FieldError(f"should be true or false, not {kind_of(value)}")
    return value


def check_int(low: float, high: float) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is not int:
            raise FieldError(f"should be a whole number, not {kind_of(value)}")
        if not low <= value <= high:
            raise FieldError(f"is {value}; it should be {_whole(low)} to {_whole(high)}")
        return value

    _BOUNDS[convert] = low, high
    return convert


def _whole(bound: float) -> str:
    """A bound in full; as a float, 2^64-1 would be shown as 2^64."""
    return str(bound) if isinstance(bound, int) else f"{bound:.0f}"


def check_float(low: float, high: float) -> Convert:
    def convert(value: Any) -> float:
        if type(value) is int and abs(value) <= 2**53:
            value = float(value)
        if type(value) is not float:
            raise FieldError(f"should be a number, not {kind_of(value)}")
        if not (math.isfinite(value) and low <= value <= high):
            raise FieldError(f"is {value}; it should be {low:g} to {high:g}")
        return value

    return convert


def check_text(limit: int) -> Convert:
    def convert(value: Any) -> str:
        if type(value) is not str:
            raise FieldError(f"should be text, not {kind_of(value)}")
        if len(value) * 4 > limit and len(value.encode("utf-8", "surrogatepass")) > limit:
            raise FieldError(f"is longer than {limit} bytes")
        return value

    return convert


def check_line(limit: int) -> Convert:
    text = check_text(limit)

    def convert(value: Any) -> str:
        found: str = text(value)
        if found.isprintable():
            return found
        return printable(found).encode()[:limit].decode(errors="ignore")

    return convert


def choices(values: Collection[str]) -> str:
    """Words to choose from as a sentence has them; the empty one is the default."""
    named = ", ".join(sorted(filter(None, values)))
    return f'{named}, or "" for the default' if "" in values else named


def check_one_of(values: frozenset[str]) -> Convert:
    def convert(value: Any) -> str:
        if type(value) is not str or value not in values:
            raise FieldError(f"should be one of {choices(values)}")
        return value

    return convert


def check_blob(limit: int) -> Convert:
    def convert(value: Any) -> bytes:
        if type(value) is not bytes:
            raise FieldError(f"should be bytes, not {kind_of(value)}")
        if len(value) > limit:
            raise FieldError(f"is longer than {limit} bytes")
        return value

    return convert


def check_packed_ids(limit: int) -> Convert:
    blob = check_blob(limit)

    def convert(value: Any) -> bytes:
        ids: bytes = blob(value)
        if len(ids) % 4:
            raise FieldError("is no list of packed token ids (its length is no multiple of 4)")
        return ids

    return convert


def check_optional(inner: Convert) -> Convert:
    def convert(value: Any) -> Any:
        return None if value is None else inner(value)

    return convert


def check_items(inner: Convert, limit: int) -> Convert:
    bounds = _BOUNDS.get(inner)

    def convert(value: Any) -> tuple[Any, ...]:
        if type(value) is not list and type(value) is not tuple:
            raise FieldError(f"should be a list, not {kind_of(value)}")
        if len(value) > limit:
            raise FieldError(f"has {len(value)} items; at most {limit} are taken")
        if bounds is not None and _are_within(value, *bounds):
            return tuple(value)
        out: list[Any] = []
        try:
            # Keeps what came before the one that raises.
            out.extend(map(inner, value))
        except FieldError as error:
            raise error.under(f"[{len(out)}]") from None
        return tuple(out)

    return convert


def _are_within(values: Sequence[Any], low: float, high: float) -> bool:
    """Whether all are whole numbers within bounds: a prompt of ids is checked as fast as read."""
    kinds = set(map(type, values))
    return not kinds or (kinds == {int} and low <= min(values) and max(values) <= high)


def check_map(limit: int) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise FieldError(f"should be a map, not {kind_of(value)}")
        if len(value) > limit:
            raise FieldError(f"has {len(value)} keys; at most {limit} are taken")
        return value

    return convert


def kind_of(value: Any) -> str:
    names = {
        str: "text",
        bytes: "bytes",
        list: "a list",
        dict: "a map",
        bool: "true or false",
        int: "an integer",
    }
    return "nothing" if value is None else names.get(type(value), f"a {type(value).__name__}")
