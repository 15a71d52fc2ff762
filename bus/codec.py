"""Typed messages over msgpack: frozen dataclasses on one side, checked bytes on the other.

A message is a frozen, slotted, keyword-only dataclass registered with a tag in a `Codec`; on the
wire it is a msgpack array `[tag, *fields]` (nested structs are arrays without a tag). Fields are
only ever added at the end, with a default: an older peer's shorter array takes the defaults, a
newer peer's longer one has its extra fields passed over. A tag with the `DROPPABLE` bit may be
unknown to the receiver, which then skips the message; any other unknown tag is an error.

Decoding checks type, range, length and depth of everything and raises `DecodeError` only,
whatever bytes come. bus/struct_codec.py has the rules of fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgpack

from bus.errors import DecodeError, Internal
from bus.fields import FieldError
from bus.struct_codec import StructCodec
from bus.unpacking import unpack

#: Tags with this bit may be skipped by a peer that does not know them.
DROPPABLE = 0x40
MAX_TAG = 0x7F
#: Of a message, its length and tag and one number.
_BEGINNING_BYTES = 64

M = TypeVar("M")


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
        values = unpack(data, max_bytes=self.max_bytes, max_depth=None)
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
