"""Inputs for fuzzing: valid messages, the same with wrong parts, junk, and bytes that were changed.

Everything is drawn from the `random.Random` that is handed in, so a case can be made again from
its seed.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import struct
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any

import msgpack

from bus.codec import Codec
from bus.fields import MaxBytes, OneOf, Range
from bus.ids import U64_MAX, PackedIds
from bus.struct_codec import StructCodec

#: Numbers at which something changes: signs, widths, limits of fields and of floats.
NUMBERS: tuple[int | float, ...] = (
    *(0, 1, -1, 2, 127, 128, 255, 256, -128, -129, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1),
    *(2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, U64_MAX, -(2**63), -(2**31)),
    *(0.0, -0.0, 0.5, 1e12, 1e308, 5e-324, float("inf"), float("-inf"), float("nan")),
)
_TEXTS = ("", "a", "op", "id", "ready", "\0", "\U0010ffff", "é" * 50, "../../x", "a" * 5000)
_BLOBS = (b"", b"\0", b"\xff" * 3, b"\1\0\0\0", bytes(16), bytes(32), bytes(33), bytes(5000))
#: First bytes of msgpack that announce much more than follows.
_GREEDY = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
)
LONGEST_RANDOM = 2000


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def struct_of(rng: random.Random, cls: type) -> Any:
    """A message, or a part of one, whose every field is allowed."""
    hints = _hints(cls)
    return cls(**{f.name: _value(rng, hints[f.name], ()) for f in dataclasses.fields(cls)})


def _value(rng: random.Random, annotation: Any, rules: tuple[Any, ...]) -> Any:
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        inner, *extras = typing.get_args(annotation)
        return _value(rng, inner, (*extras, *rules))
    if annotation is PackedIds:
        return PackedIds(rng.randbytes(4 * rng.randrange(6)))
    if isinstance(annotation, typing.NewType):
        return _value(rng, annotation.__supertype__, rules)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [each for each in typing.get_args(annotation) if each is not type(None)]
        return None if rng.random() < 0.3 else _value(rng, inner, rules)
    if origin is tuple:
        item = typing.get_args(annotation)[0]
        return tuple(_value(rng, item, ()) for _ in range(rng.randrange(4)))
    if origin is dict:
        return {rng.choice(_TEXTS): junk(rng) for _ in range(rng.randrange(3))}
    if dataclasses.is_dataclass(annotation):
        return struct_of(rng, typing.cast(type, annotation))
    return _scalar(rng, annotation, rules)


def _scalar(rng: random.Random, annotation: Any, rules: tuple[Any, ...]) -> Any:
    bounds = next((rule for rule in rules if isinstance(rule, Range)), Range(0, U64_MAX))
    limit = next((rule.limit for rule in rules if isinstance(rule, MaxBytes)), 100)
    choices = next((rule.values for rule in rules if isinstance(rule, OneOf)), None)
    if annotation is bool:
        return rng.random() < 0.5
    if annotation is int:
        low, high = int(bounds.low), int(bounds.high)
        return rng.choice((low, high, rng.randint(low, high), min(high, low + rng.randrange(9))))
    if annotation is float:
        return rng.choice((bounds.low, bounds.high, rng.uniform(bounds.low, bounds.high)))
    if choices is not None:
        return rng.choice(sorted(choices))
    if annotation is str:
        return "".join(rng.choices("abc-é\0", k=rng.randrange(1 + min(limit, 40) // 2)))
    return rng.randbytes(rng.randrange(1 + min(limit, 40)))


def junk(rng: random.Random, depth: int = 3) -> Any:
    """Anything that msgpack can carry."""
    kind = rng.randrange(8 if depth else 6)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind == 2:
        return rng.choice(_TEXTS)
    if kind == 3:
        return rng.choice(_BLOBS)
    if kind == 4:
        return rng.choice((None, True, False))
    if kind == 5:
        return rng.randint(-(2**63), U64_MAX)
    items = [junk(rng, depth - 1) for _ in range(rng.randrange(5))]
    if kind == 6:
        return items
    return {rng.choice((*_TEXTS, b"k")): item for item in items}


def spoil(rng: random.Random, value: Any) -> Any:
    """The same tree with something in it replaced, left out, added or doubled."""
    if type(value) is dict and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        changed = dict(value)
        action = rng.randrange(4)
        if action == 0:
            del changed[key]
        elif action == 1:
            changed[rng.choice(_TEXTS)] = changed.pop(key)
        else:
            changed[key] = spoil(rng, value[key])
        return changed
    if type(value) is list and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        changed_list = list(value)
        action = rng.randrange(7)
        if action == 0:
            del changed_list[at:]
        elif action == 1:
            changed_list.insert(at, junk(rng))
        elif action == 2:
            changed_list *= rng.randrange(2, 5)
        else:
            changed_list[at] = spoil(rng, value[at])
        return changed_list
    return junk(rng)


def change_bytes(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Bytes with one to four changes: flipped, cut, doubled, spliced, set to telling values."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        action = rng.randrange(8)
        if action == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif action == 1 and at < len(changed):
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xC0, 0xC1, 0xDD, 0xFF))
        elif action == 2:
            del changed[at:]
        elif action == 3:
            del changed[at : at + rng.randrange(1, 9)]
        elif action == 4:
            changed[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif action == 5:
            changed[at:at] = changed[at : at + rng.randrange(1, 64)]
        elif action == 6 and others:
            other = rng.choice(others)
            changed[at:] = other[rng.randrange(len(other) + 1) :]
        else:
            changed[at : at + 4] = struct.pack(">I", rng.choice((0, 1, 2**16, 2**31, 2**32 - 1)))
    return bytes(changed)


def random_bytes(rng: random.Random) -> bytes:
    """Bytes of any kind, short ones most often, some of which announce much that does not come."""
    length = int(LONGEST_RANDOM ** rng.random()) - 1
    start = rng.choice((b"", b"", rng.choice(_GREEDY), b"\x91" * rng.randrange(1, 2000)))
    return start + rng.randbytes(length)


def encoding(rng: random.Random, codec: Codec) -> bytes:
    """Valid, spoiled, changed or random bytes for a codec's `decode`."""
    how = rng.randrange(10)
    if how == 0:
        return random_bytes(rng)
    tag, cls = rng.choice(sorted(codec.messages.items()))
    message = struct_of(rng, cls)
    if how == 1:
        return codec.encode(message)
    if how < 6:
        return change_bytes(rng, codec.encode(message), (codec.encode(struct_of(rng, cls)),))
    values = [tag, *StructCodec.of(cls).encode(message)]
    for _ in range(rng.choice((1, 1, 2, 5))):
        values = spoil(rng, values)
    packed: bytes = msgpack.packb(values)
    return packed
