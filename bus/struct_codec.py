"""How a frozen dataclass becomes a list of msgpack fields and back, and is read from an API map.

Its annotations are the rules.
Field types: bool, int, float, str, bytes, PackedIds, NewTypes of these, `T | None`,
`tuple[T, ...]`, structs (frozen dataclasses; maps in an API map), `dict[str, Any]` and `Any` (API
maps only), and `Annotated[T, Range(..) | MaxBytes(..) | MaxItems(..) | OneOf(..) | OneLine()]`.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bus.fields import (
    Convert,
    FieldError,
    MaxBytes,
    MaxItems,
    OneLine,
    OneOf,
    Range,
    check_blob,
    check_bool,
    check_float,
    check_int,
    check_items,
    check_line,
    check_map,
    check_nothing,
    check_one_of,
    check_optional,
    check_packed_ids,
    check_text,
    kind_of,
)
from bus.ids import U64_MAX, PackedIds

#: Limits of fields that state none. A text field is a name or a sentence, not a document.
DEFAULT_TEXT_BYTES = 4096
DEFAULT_BLOB_BYTES = 64 * 1024 * 1024
DEFAULT_ITEMS = 4096


def _converter(annotation: Any, rules: tuple[Any, ...] = (), *, maps: bool = False) -> Convert:
    """The check for one annotation.

    Args:
        rules: its Annotated extras.
        maps: structs in it are maps, as in the API, and not lists.
    """
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *extras = typing.get_args(annotation)
        return _converter(inner, (*extras, *rules), maps=maps)
    if annotation is PackedIds:
        return check_packed_ids(_rule(rules, MaxBytes, MaxBytes(DEFAULT_BLOB_BYTES)).limit)
    if annotation is Any:
        return check_nothing
    if isinstance(annotation, typing.NewType):
        return _converter(annotation.__supertype__, rules)
    if origin in (typing.Union, types.UnionType):
        inner_types = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(inner_types) != 1:
            raise TypeError(f"only T | None is a field type, not {annotation}")
        return check_optional(_converter(inner_types[0], rules, maps=maps))
    if origin is tuple:
        item, ellipsis = typing.get_args(annotation)
        if ellipsis is not Ellipsis:
            raise TypeError(f"only tuple[T, ...] is a field type, not {annotation}")
        limit = _rule(rules, MaxItems, MaxItems(DEFAULT_ITEMS)).limit
        return check_items(_converter(item, maps=maps), limit)
    if origin is dict:
        return check_map(_rule(rules, MaxItems, MaxItems(DEFAULT_ITEMS)).limit)
    if dataclasses.is_dataclass(annotation):
        struct = StructCodec.of(typing.cast(type, annotation))
        return struct.decode_part if maps else struct.decode
    return _scalar(annotation, rules)


def _scalar(annotation: Any, rules: tuple[Any, ...]) -> Convert:
    if annotation is bool:
        return check_bool
    if annotation is int:
        bounds = _rule(rules, Range, Range(0, U64_MAX))
        return check_int(bounds.low, bounds.high)
    if annotation is float:
        bounds = _rule(rules, Range, Range(-math.inf, math.inf))
        return check_float(bounds.low, bounds.high)
    if annotation is str:
        for rule in rules:
            if isinstance(rule, OneOf):
                return check_one_of(rule.values)
        limit = _rule(rules, MaxBytes, MaxBytes(DEFAULT_TEXT_BYTES)).limit
        return check_line(limit) if OneLine() in rules else check_text(limit)
    if annotation is bytes:
        return check_blob(_rule(rules, MaxBytes, MaxBytes(DEFAULT_BLOB_BYTES)).limit)
    raise TypeError(f"{annotation!r} is no field type")


R = TypeVar("R")


def _rule(rules: tuple[Any, ...], kind: type[R], default: R) -> R:
    return next((rule for rule in rules if isinstance(rule, kind)), default)


Lower = Callable[[Any], Any]


def _lowering(annotation: Any) -> Lower | None:
    """How a field's value becomes what msgpack takes, structs as arrays; None: it is that."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _lowering(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        (inner,) = (a for a in typing.get_args(annotation) if a is not type(None))
        lower = _lowering(inner)
        return None if lower is None else lambda value: None if value is None else lower(value)
    if origin is tuple:
        each = _lowering(typing.get_args(annotation)[0])
        return None if each is None else lambda values: [each(value) for value in values]
    if dataclasses.is_dataclass(annotation):
        return StructCodec.of(typing.cast(type, annotation)).encode
    return None


class StructCodec:
    """How one frozen dataclass becomes a list of fields and back; made once per class."""

    _made: typing.ClassVar[dict[type, StructCodec]] = {}

    def __init__(self, cls: type) -> None:
        hints = typing.get_type_hints(cls, include_extras=True)
        self.cls = cls
        self.fields = dataclasses.fields(cls)
        self.names = tuple(f.name for f in self.fields)
        self.converters = tuple(_converter(hints[name]) for name in self.names)
        self._map_converters = tuple(_converter(hints[name], maps=True) for name in self.names)
        #: By place, the fields that msgpack does not take as they are.
        self._lowered = tuple(
            (place, lower)
            for place, name in enumerate(self.names)
            if (lower := _lowering(hints[name])) is not None
        )
        self._setters = _setters_of(cls, self.names)
        self.required = sum(
            f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
            for f in self.fields
        )

    @classmethod
    def of(cls, struct: type) -> StructCodec:
        made = cls._made.get(struct)
        if made is None:
            made = cls._made[struct] = StructCodec(struct)
        return made

    def encode(self, value: Any) -> list[Any]:
        values = [getattr(value, name) for name in self.names]
        for place, lower in self._lowered:
            values[place] = lower(values[place])
        return values

    def decode(self, values: Any) -> Any:
        if type(values) is not list:
            raise FieldError(f"should be a {self.cls.__name__}, not {kind_of(values)}")
        return self.decode_from(values, 0)

    def decode_from(self, values: list[Any], start: int) -> Any:
        """The struct whose fields begin at a place of a list."""
        if len(values) - start < self.required:
            raise FieldError(f"lacks fields of {self.cls.__name__}")
        given = values[start:] if start else values
        try:
            taken = list(map(operator.call, self.converters, given))
        except FieldError as error:
            raise error.under(self._wrong_field(given)) from None
        if len(taken) < len(self.names) or self._setters is None:
            return self.cls(**dict(zip(self.names, taken, strict=False)))
        made: Any = object.__new__(self.cls)
        for put, value in zip(self._setters, taken, strict=True):
            put(made, value)
        return made

    def _wrong_field(self, values: list[Any]) -> str:
        """The first field that its value does not fit."""
        for name, convert, value in zip(self.names, self.converters, values, strict=False):
            try:
                convert(value)
            except FieldError:
                return name
        return ""

    def decode_map(self, values: Mapping[str, Any]) -> Any:
        made = {}
        for field, convert in zip(self.fields, self._map_converters, strict=True):
            if field.name in values:
                try:
                    made[field.name] = convert(values[field.name])
                except FieldError as error:
                    raise error.under(field.name) from None
            elif (
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            ):
                raise FieldError("is missing", (field.name,))
        return self.cls(**made)

    def decode_part(self, values: Any) -> Any:
        """A struct inside an API map."""
        if type(values) is not dict:
            raise FieldError(f"should be a map, not {kind_of(values)}")
        return self.decode_map(values)


def _setters_of(cls: type, names: tuple[str, ...]) -> tuple[Callable[[Any, Any], None], ...] | None:
    """What sets the fields of a bare object of a slotted class, at half the cost of its __init__.

    None where __init__ does more than that.
    """
    if hasattr(cls, "__post_init__") or not hasattr(cls, "__slots__"):
        return None
    return tuple(getattr(cls, name).__set__ for name in names)
