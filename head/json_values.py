"""Values that came from outside and will be written as JSON into a prompt or compared with one.

Used in the head's loop and in its text processes; what is refused is named down to the place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from bus.errors import Invalid
from bus.fields import kind_of
from bus.printable import printable

#: Levels of lists and maps in one value; a body of the API has no more.
MAX_DEPTH = 64
#: What a place is cut to in a sentence; its middle says less than its ends.
_SHOWN_PLACE = 100
#: What the `param` of an error has at most.
PARAM_BYTES = 128
_AS_THEY_ARE = frozenset({int, bool, type(None)})
#: Where a value is: the name of all of it, or what it lies in and its key or number there.
_Place: TypeAlias = "str | tuple[_Place, str | int]"


def check_text(text: str, where: str) -> str:
    """The text, once it is whole Unicode.

    Raises:
        Invalid: it has half of a UTF-16 pair, which no tokenizer takes.
    """
    return _whole(text, where)


def check_json(value: Any, where: str, depth: int = 0) -> Any:
    """The value, once all of it can be written as JSON: text keys, finite numbers, whole texts.

    Args:
        where: its place, for messages.
        depth: levels that it lies in already.

    Raises:
        Invalid: naming the part that can not.
    """
    return _checked(value, where, depth)


def _checked(value: Any, place: _Place, depth: int) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is str:
        return value if value.isascii() else _whole(value, place)
    if kind is float and math.isfinite(value):
        return value
    if kind is dict or isinstance(value, Mapping):
        _check_depth(place, depth)
        depth += 1
        return {
            _key(key, place): item
            if type(item) in _AS_THEY_ARE
            else _checked(item, (place, key), depth)
            for key, item in value.items()
        }
    if kind is list or isinstance(value, tuple | list):
        _check_depth(place, depth)
        depth += 1
        return [
            item if type(item) in _AS_THEY_ARE else _checked(item, (place, number), depth)
            for number, item in enumerate(value)
        ]
    return _scalar(value, place)


def _check_depth(place: _Place, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _refused(place, f"lies more than {MAX_DEPTH} levels deep; send it flatter")


def _scalar(value: Any, place: _Place) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(place, f"is {value}; JSON has finite numbers only")
        return value
    if isinstance(value, str):
        return _whole(value, place)
    if isinstance(value, int):
        return value
    raise _refused(place, f"is {kind_of(value)}; JSON has no such thing: send text")


def shorten(where: str) -> str:
    """A place as a sentence has room for."""
    half = _SHOWN_PLACE // 2 - 2
    return printable(where if len(where) <= _SHOWN_PLACE else f"{where[:half]}...{where[-half:]}")


def as_param(where: str) -> str:
    """A place as an error's `param` has room for; keys in it may be any text, of any length."""
    return where.encode("utf-8", "replace")[:PARAM_BYTES].decode("utf-8", "ignore")


def _whole(text: str, place: _Place) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _refused(
            place,
            f"has a lone surrogate at character {error.start} (half of a UTF-16 pair); send whole "
            "characters",
        ) from None
    return text


def _key(key: object, place: _Place) -> str:
    if not isinstance(key, str):
        raise _refused(place, f"has {kind_of(key)} as a key; the keys of a map are text")
    return key if key.isascii() else _whole(key, place)


def _refused(place: _Place, sentence: str) -> Invalid:
    """What is wrong at a place; only here is a place spelled out."""
    parts: list[str] = []
    while not isinstance(place, str):
        place, key = place
        parts.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    where = "".join((place, *reversed(parts)))
    return Invalid(f"{shorten(where)} {sentence}", param=as_param(where))
