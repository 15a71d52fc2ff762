"""Msgpack data unpacked under limits of length, depth, and number of lists and maps."""

from __future__ import annotations

from typing import Any

import msgpack

from bus.errors import DecodeError
from bus.fields import kind_of
from bus.wrong_places import WrongKey, not_unicode, wrong_key

#: Deeper data than any message of ours has; stops bombs before objects are made of them.
MAX_DEPTH = 16
#: Lists and maps in one message, four times what any of ours has. An empty one is a byte on the
#: wire and 64 in memory: 8 MiB of them took 518 MiB.
MAX_CONTAINERS = 1 << 18
_NESTED = frozenset({list, dict})
#: A message that is too short to hold enough of them for it to matter is not counted through.
_COUNTED_FROM_BYTES = 64 * 1024
#: How much of a key an error repeats.
_SHOWN_KEY = 60


def unpack(
    data: bytes, *, max_bytes: int, max_depth: int | None = MAX_DEPTH, number_keys: bool = False
) -> Any:
    """Plain msgpack data under limits.

    Args:
        max_depth: None where the caller checks what it takes of it, level by level.
        number_keys: whole numbers may be keys of maps, and become their decimal text.

    Raises:
        DecodeError: too long, too deep, too many lists and maps, or not msgpack.
    """
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
    except WrongKey as wrong:
        raise wrong_key(data, wrong, _MapMaker(None)) from None
    except UnicodeDecodeError:
        raise not_unicode(data) from None
    except Exception as error:  # noqa: BLE001 - msgpack raises many kinds for bad input
        raise DecodeError(f"not msgpack: {type(error).__name__}") from None
    if max_depth is not None:
        _check_depth(values, max_depth)
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
                raise WrongKey(f"has {kind_of(key)} as a key; it should be text or a whole number")
            if key in made:
                named = key if type(key) is str else ""
                raise WrongKey(f"has the key {key[:_SHOWN_KEY]!r} twice; give it once", named)
            made[key] = value
        return made


def _check_depth(values: Any, limit: int, at: int = 0) -> None:
    if type(values) is list or type(values) is dict:
        if at == limit:
            raise DecodeError(f"message nested deeper than {limit}")
        items = values.values() if type(values) is dict else values
        if _NESTED.isdisjoint(map(type, items)):
            return
        for item in items:
            if type(item) is list or type(item) is dict:
                _check_depth(item, limit, at + 1)
