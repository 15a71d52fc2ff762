"""Typed messages over msgpack: frozen dataclasses on one side, checked bytes on the other.

A message is a frozen, slotted, keyword-only dataclass registered with a tag in a `Codec`; on the
wire it is a msgpack array `[tag, *fields]` (nested structs are arrays without a tag). Fields are
only ever added at the end, with a default: an older peer's shorter array takes the defaults, a
newer peer's longer one has its extra fields passed over. A tag with the `DROPPABLE` bit may be
unknown to the receiver, which then skips the message; any other unknown tag is an error.

Decoding checks type, range, length and depth of everything and raises `DecodeError` only,
whatever bytes come. The same field rules read the API's string-keyed maps (`from_map`), there
with `Invalid` errors that name the parameter.

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

import msgpack

from bus.errors import DecodeError, Internal, Invalid
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

#: Tags with this bit may be skipped by a peer that does not know them.
DROPPABLE = 0x40
MAX_TAG = 0x7F
#: Limits of fields that state none. A text field is a name or a sentence, not a document.
DEFAULT_TEXT_BYTES = 4096
DEFAULT_BLOB_BYTES = 64 * 1024 * 1024
DEFAULT_ITEMS = 4096
#: Deeper data than any message of ours has; stops bombs before objects are made of them.
MAX_DEPTH = 16
#: Lists and maps in one message, four times what any of ours has. An empty one is a byte on the
#: wire and 64 in memory: 8 MiB of them took 518 MiB.
MAX_CONTAINERS = 1 << 18
#: Of a message, its length and tag and one number.
_BEGINNING_BYTES = 64
#: A message that is too short to hold enough of them for it to matter is not counted through.
_COUNTED_FROM_BYTES = 64 * 1024

M = TypeVar("M")


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


class Codec:
    """The messages of one protocol, by tag.

    Args:
        name: for error texts.
        max_bytes: the longest encoded message that `decode` takes.
    """

    def __init__(self, name: str, *, max_bytes: int) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self._by_tag: dict[int, StructCodec] = {}
        self._tags: dict[type, int] = {}
        self._priorities: dict[type, int] = {}

    def message(self, tag: int, *, priority: int = 0) -> Callable[[type[M]], type[M]]:
        """Register a frozen dataclass under a tag (0 to 127, bit 0x40 = droppable)."""

        def register(cls: type[M]) -> type[M]:
            if not 0 <= tag <= MAX_TAG:
                raise TypeError(f"tag {tag} of {cls.__name__} is outside 0 to {MAX_TAG}")
            if tag in self._by_tag:
                raise TypeError(f"tag {tag} names {self._by_tag[tag].cls.__name__} already")
            self._by_tag[tag] = StructCodec.of(cls)
            self._tags[cls] = tag
            self._priorities[cls] = priority
            return cls

        return register

    @property
    def messages(self) -> Mapping[int, type]:
        """Message class by tag."""
        return {tag: struct.cls for tag, struct in self._by_tag.items()}

    def priority(self, message: object) -> int:
        """The priority class of a message of this protocol."""
        return self._priorities[type(message)]

    def encode(self, message: object) -> bytes:
        """The bytes of a message.

        Raises:
            Internal: a field has a value that no message can carry; a fault of the caller.
        """
        tag = self._tags[type(message)]
        try:
            packed: bytes = msgpack.packb([tag, *self._by_tag[tag].encode(message)])
        except (OverflowError, ValueError, TypeError, AttributeError) as error:
            name = type(message).__name__
            raise Internal(f"a {self.name} message {name} can not be encoded: {error}") from None
        return packed

    def decode(self, data: bytes) -> Any | None:
        """The message in `data`, or None for an unknown one that may be skipped.

        Raises:
            DecodeError: anything else that is no message of this protocol.
        """
        # The structs say how deep it may be, field by field; what a newer peer adds is passed over.
        values = _unpacked(data, self.max_bytes)
        if type(values) is not list or not values or type(values[0]) is not int:
            raise DecodeError(f"not a {self.name} message")
        tag = values[0]
        struct = self._by_tag.get(tag)
        if struct is None:
            if 0 <= tag <= MAX_TAG and tag & DROPPABLE:
                return None
            raise DecodeError(f"{self.name} message with unknown tag {tag}; is the peer newer?")
        try:
            return struct.decode_from(values, 1)
        except FieldError as error:
            where = ".".join((struct.cls.__name__, *error.path))
            raise DecodeError(f"{where} {error.problem}") from None

    def beginning(self, data: bytes) -> tuple[type, Any] | None:
        """What bytes begin as that `decode` refuses: a class of message, and its first value.

        The value is not checked. None when not even so much can be read.
        """
        unpacker = msgpack.Unpacker(raw=True)
        unpacker.feed(data[:_BEGINNING_BYTES])
        try:
            if unpacker.read_array_header() < 2:
                return None
            tag, value = unpacker.unpack(), unpacker.unpack()
        except Exception:  # noqa: BLE001 - msgpack raises many kinds for bad input
            return None
        struct = self._by_tag.get(tag) if type(tag) is int else None
        return None if struct is None else (struct.cls, value)


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

    def plain(item: Any) -> Any:
        if type(item) is tuple:
            return [plain(part) for part in item]
        return to_map(item) if dataclasses.is_dataclass(item) else item

    names = StructCodec.of(type(value)).names
    return {name: plain(v) for name in names if (v := getattr(value, name)) is not None}


def unpack(
    data: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH, number_keys: bool = False
) -> Any:
    """Plain msgpack data under limits.

    Args:
        number_keys: whole numbers may be keys of maps, and become their decimal text.

    Raises:
        DecodeError: too long, too deep, too many lists and maps, or not msgpack.
    """
    values = _unpacked(data, max_bytes, number_keys=number_keys)
    _check_depth(values, max_depth)
    return values


def _unpacked(data: bytes, max_bytes: int, *, number_keys: bool = False) -> Any:
    if len(data) > max_bytes:
        raise DecodeError(f"message of {len(data)} bytes; at most {max_bytes} are taken")
    count = _ContainerCount() if len(data) > _COUNTED_FROM_BYTES else None
    maps = {"object_pairs_hook": _MapMaker(count)} if number_keys else {"object_hook": count}
    try:
        values = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=not number_keys,
            max_ext_len=0,
            list_hook=count,
            **maps,
        )
    except DecodeError:
        raise
    except Exception as error:  # noqa: BLE001 - msgpack raises many kinds for bad input
        raise DecodeError(f"not msgpack: {type(error).__name__}") from None
    return values


class _ContainerCount:
    """Called with every list and map that is made of a message."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_CONTAINERS

    def __call__(self, made: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise DecodeError(f"message of more than {MAX_CONTAINERS} lists and maps")
        return made


class _MapMaker:
    """Makes the maps of a message whose keys are text, bytes, or whole numbers."""

    __slots__ = ("_count",)

    def __init__(self, count: _ContainerCount | None) -> None:
        self._count = count

    def __call__(self, pairs: list[tuple[Any, Any]]) -> Any:
        if self._count is not None:
            self._count(pairs)
        made = {}
        for key, value in pairs:
            if type(key) is int:
                key = str(key)
            elif type(key) is not str and type(key) is not bytes:
                raise DecodeError(f"a map has {kind_of(key)} as a key; it should be text")
            if key in made:
                raise DecodeError(f"a map has the key {key!r} twice")
            made[key] = value
        return made


def _check_depth(values: Any, limit: int, at: int = 0) -> None:
    if type(values) is list or type(values) is dict:
        if at == limit:
            raise DecodeError(f"message nested deeper than {limit}")
        for item in values.values() if type(values) is dict else values:
            if type(item) is list or type(item) is dict:
                _check_depth(item, limit, at + 1)
