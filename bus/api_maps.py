"""Structs as the API's string-keyed maps and back, by the rules that messages' fields have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from bus.errors import Invalid
from bus.fields import FieldError
from bus.struct_codec import StructCodec

M = TypeVar("M")
#: What travels as it is.
_PLAIN = frozenset({bool, int, float, str, bytes})


def from_map(cls: type[M], values: Mapping[str, Any]) -> M:
    """A struct from an API map: unknown keys are passed over, wrong values are errors.

    Raises:
        Invalid: a key is missing or a value does not fit; `param` names it.
    """
    try:
        made: M = StructCodec.of(cls).decode_map(values)
        return made
    except FieldError as error:
        param = "".join(p if p.startswith("[") else f".{p}" for p in error.path).lstrip(".")
        raise Invalid(f"{param} {error.problem}", param=param) from None


def to_map(value: object) -> dict[str, Any]:
    """A struct as an API map, nested ones too; fields that are None are left out."""
    return {
        name: field if type(field) in _PLAIN else _plain(field)
        for name in StructCodec.of(type(value)).names
        if (field := getattr(value, name)) is not None
    }


def _plain(item: Any) -> Any:
    if type(item) is tuple:
        return [part if type(part) in _PLAIN else _plain(part) for part in item]
    return to_map(item) if dataclasses.is_dataclass(item) else item
