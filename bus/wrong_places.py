"""Where msgpack data has what a decoder refuses: half of a UTF-16 pair, or a key that is none.

A decoder only says that there is one; a person wants to know which.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from bus.errors import DecodeError
from bus.printable import printable

#: Values that are looked at, and levels: the search is for people, and must not hold up a loop.
_LOOKED_AT, _MAX_DEPTH = 50_000, 64
_SHOWN_PLACE = 100

Pairs = list[tuple[Any, Any]]
Wrong = Callable[[Any], bool]
#: Stands where the map is that was refused.
_HERE = object()


class WrongKey(Exception):
    """What is wrong with a map's key, in words that fit behind the map's name.

    Attributes:
        key: empty where it is no text.
    """

    def __init__(self, problem: str, key: str = "") -> None:
        super().__init__(problem)
        self.key = key


def not_unicode(data: bytes) -> DecodeError:
    """The error of data that has a text which is no UTF-8; `param` is its place, where it is found.

    Args:
        data: that was refused for it, so its length is within limits.
    """
    place = _found(data, _is_half)
    return DecodeError(
        f"{place or 'a text'} is no whole Unicode text (it has half of a UTF-16 pair, or bytes "
        "that are no UTF-8); send whole characters",
        param=place or None,
    )


def half_character(values: Any) -> str:
    """The place of the first text that is no whole Unicode; empty where none is found.

    Args:
        values: of a message that can not be packed for it.
    """
    places = _places(values, "", _is_half, itertools.count(_LOOKED_AT, -1), 0)
    return printable(next(places, ""))[:_SHOWN_PLACE]


def wrong_key(data: bytes, wrong: WrongKey, make: Callable[[Pairs], Any]) -> DecodeError:
    """The error of data that has a map with a wrong key; `param` is its place, where it is found.

    Args:
        data: that was refused for it, so its length is within limits.
        wrong: what `make` said.
        make: makes a map of its pairs, and raised WrongKey for one of these.
    """
    is_found = False

    def marked(pairs: Pairs) -> Any:
        nonlocal is_found
        try:
            return make(pairs)
        except WrongKey:
            if is_found:
                return {key: value for key, value in pairs if type(key) in (str, bytes, int)}
            is_found = True
            return _HERE

    place = _found(data, lambda value: value is _HERE, marked)
    param = printable(wrong.key)[:_SHOWN_PLACE] if place == "" else place
    return DecodeError(f"{place or 'a map'} {wrong}", param=param or None)


def _found(data: bytes, wrong: Wrong, make: Callable[[Pairs], Any] = dict) -> str | None:
    """The place of the first value that is wrong, empty for all of it; None: not found."""
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
            object_pairs_hook=lambda pairs: counted(make(pairs)),
        )
        place = next(_places(values, "", wrong, itertools.count(_LOOKED_AT, -1), 0), None)
    except Exception:  # noqa: BLE001 - what is wrong otherwise is not told here
        return None
    return None if place is None else printable(place)[:_SHOWN_PLACE]


def _places(value: Any, place: str, wrong: Wrong, left: Iterator[int], depth: int) -> Iterator[str]:
    """Places of values that are wrong; that of a map for its key."""
    if depth > _MAX_DEPTH or next(left) <= 0:
        return
    if wrong(value):
        yield place
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value[:_LOOKED_AT]):
            yield from _places(item, f"{place}[{number}]", wrong, left, depth + 1)
    elif isinstance(value, dict):
        for key, item in itertools.islice(value.items(), _LOOKED_AT):
            if wrong(key):
                yield place
            inner = f"{place}.{key}" if place else str(key)
            yield from _places(item, inner, wrong, left, depth + 1)


def _is_half(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
