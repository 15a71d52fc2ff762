"""Values that came from outside and will be written as JSON into a prompt or compared with one.

Used in the head's loop and in its text processes; what is refused is named down to the place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bus.errors import Invalid
from bus.fields import kind_of
from bus.printable import printable

#: Levels of lists and maps in one value; a body of the API has no more.
MAX_DEPTH = 64
#: What a place is cut to in a sentence; its middle says less than its ends.
_SHOWN_PLACE = 100


def check_text(text: str, where: str) -> str:
    """The text, once it is whole Unicode.

    Raises:
        Invalid: it has half of a UTF-16 pair, which no tokenizer takes.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid(
            f"{shorten(where)} has a lone surrogate at character {error.start} (half of a UTF-16 "
            "pair); send whole characters",
            param=where,
        ) from None
    return text


def check_json(value: Any, where: str, depth: int = 0) -> Any:
    """The value, once all of it can be written as JSON: text keys, finite numbers, whole texts.

    Args:
        where: its place, for messages.
        depth: levels that it lies in already.

    Raises:
        Invalid: naming the part that can not.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return check_text(value, where)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid(f"{shorten(where)} is {value}; JSON has finite numbers only", param=where)
        return value
    if isinstance(value, list | tuple | Mapping) and depth >= MAX_DEPTH:
        raise Invalid(
            f"{shorten(where)} lies more than {MAX_DEPTH} levels deep; send it flatter", param=where
        )
    if isinstance(value, list | tuple):
        return [check_json(item, f"{where}[{n}]", depth + 1) for n, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, where): _item(value[key], key, where, depth) for key in value}
    raise Invalid(
        f"{shorten(where)} is {kind_of(value)}; JSON has no such thing: send text", param=where
    )


def shorten(where: str) -> str:
    """A place as a sentence has room for."""
    half = _SHOWN_PLACE // 2 - 2
    return printable(where if len(where) <= _SHOWN_PLACE else f"{where[:half]}...{where[-half:]}")


def _item(value: Any, key: str, where: str, depth: int) -> Any:
    return check_json(value, f"{where}.{key}", depth + 1)


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise Invalid(
            f"{shorten(where)} has {kind_of(key)} as a key; the keys of a map are text", param=where
        )
    return check_text(key, where)
