"""Where msgpack data has a text that is no UTF-8, such as half of a UTF-16 pair.

A decoder only says that there is one; a person wants to know which.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgpack

from bus.errors import DecodeError
from bus.printable import printable

#: Values that are looked at, and levels: the search is for people, and must not hold up a loop.
_LOOKED_AT, _MAX_DEPTH = 50_000, 64
_SHOWN_PLACE = 100


def not_unicode(data: bytes) -> DecodeError:
    """The error of data that has a text which is no UTF-8; `param` is its place, where it is found.

    Args:
        data: that was refused for it, so its length is within limits.
    """
    place = printable(_first_place(data))[:_SHOWN_PLACE]
    return DecodeError(
        f"{place or 'a text'} is no whole Unicode text (it has half of a UTF-16 pair, or bytes "
        "that are no UTF-8); send whole characters",
        param=place or None,
    )


def _first_place(data: bytes) -> str:
    left = itertools.count(_LOOKED_AT, -1)

    def counted(made: Any) -> Any:
        if next(left) <= 0:
            raise DecodeError("too many")
        return made

    try:
        values = msgpack.unpackb(
            data,
            raw=False,
            unicode_errors="surrogateescape",
            strict_map_key=False,
            max_ext_len=0,
            list_hook=counted,
            object_hook=counted,
        )
        return next(_places(values, "", itertools.count(_LOOKED_AT, -1), 0), "")
    except Exception:  # noqa: BLE001 - what is wrong otherwise is not told here
        return ""


def _places(value: Any, place: str, left: Iterator[int], depth: int) -> Iterator[str]:
    """Places of texts that are no UTF-8; that of a map for its key."""
    if depth > _MAX_DEPTH or next(left) <= 0:
        return
    if isinstance(value, str) and not _is_whole(value):
        yield place
    elif isinstance(value, list):
        for number, item in enumerate(value[:_LOOKED_AT]):
            yield from _places(item, f"{place}[{number}]", left, depth + 1)
    elif isinstance(value, dict):
        for key, item in itertools.islice(value.items(), _LOOKED_AT):
            if isinstance(key, str) and not _is_whole(key):
                yield place
            yield from _places(item, f"{place}.{key}" if place else str(key), left, depth + 1)


def _is_whole(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
