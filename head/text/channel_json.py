"""JSON in an answer, read as it comes: what can not become JSON is told at its first character."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import Any

from head.text.channel_reader import Malformed, Reader, Steps

#: Lists and objects in one another.
MAX_DEPTH = 64
#: Digits of one number; more are no number that anybody meant.
MAX_DIGITS = 1000
_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"(?:true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_HEX = "0123456789abcdefABCDEF"
_HALVES = re.compile("[\ud800-\udfff]")
#: What JSON escapes as halves of a pair of UTF-16, both or one alone, behind escaped backslashes.
_HALF_ESCAPES = re.compile(
    r"(?<!\\)((?:\\\\)*)"
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_PAIR_LENGTH = 12
_ENDS = {"{": "}", "[": "]"}
#: A bracket, or a string with those that are none; every quote begins one, so none is tried twice.
_BRACKETS = re.compile(r'[\[\]{}]|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


def json_value(reader: Reader) -> Steps[str]:
    """The text of one JSON value that starts here, without white space around it.

    Raises:
        Malformed: it is none; RFC 8259 is held in full, up to `MAX_DEPTH`.
    """
    parts: list[str] = []
    #: What each open list and object ends with.
    open_: list[str] = []
    #: Whether a key comes next, and not a value.
    key = False
    while True:
        character = yield from reader.need()
        if key and character != '"':
            raise Malformed
        if character == '"':
            parts.append((yield from json_string(reader)))
            if key:
                parts.append((yield from _colon(reader)))
                key = False
                continue
        elif character in _ENDS:
            parts.append(reader.take(reader.pos + 1))
            open_.append(_ENDS[character])
            if len(open_) > MAX_DEPTH:
                raise Malformed
            parts.append((yield from reader.run(_SPACE)))
            if (yield from reader.need()) != open_[-1]:
                key = character == "{"
                continue
            parts.append(reader.take(reader.pos + 1))
            open_.pop()
        else:
            parts.append((yield from _scalar(reader)))
        key = yield from _after_value(reader, parts, open_)
        if not open_:
            return "".join(parts)


def _after_value(reader: Reader, parts: list[str], open_: list[str]) -> Steps[bool]:
    """Close what ends here, up to the next comma; gives whether a key follows it."""
    while open_:
        parts.append((yield from reader.run(_SPACE)))
        character = yield from reader.need()
        if character == ",":
            parts.append(reader.take(reader.pos + 1))
            parts.append((yield from reader.run(_SPACE)))
            return open_[-1] == "}"
        if character != open_[-1]:
            raise Malformed
        parts.append(reader.take(reader.pos + 1))
        open_.pop()
    return False


def _colon(reader: Reader) -> Steps[str]:
    before = yield from reader.run(_SPACE)
    if (yield from reader.need()) != ":":
        raise Malformed
    return before + reader.take(reader.pos + 1) + (yield from reader.run(_SPACE))


def json_string(reader: Reader) -> Steps[str]:
    """The text of a JSON string that starts here, with its quotes.

    Raises:
        Malformed: it is none.
    """
    if (yield from reader.need()) != '"':
        raise Malformed
    parts = [reader.take(reader.pos + 1)]
    while True:
        parts.append((yield from reader.run(_PLAIN)))
        character = yield from reader.need()
        if character not in '"\\':
            raise Malformed
        parts.append(reader.take(reader.pos + 1))
        if character == '"':
            return "".join(parts)
        character = yield from reader.need()
        if character not in '"\\/bfnrtu':
            raise Malformed
        parts.append(reader.take(reader.pos + 1))
        for _ in range(4 if character == "u" else 0):
            if (yield from reader.need()) not in _HEX:
                raise Malformed
            parts.append(reader.take(reader.pos + 1))


def _scalar(reader: Reader) -> Steps[str]:
    word = yield from reader.word(_WORD)
    if not is_scalar(word):
        raise Malformed
    return word


def is_scalar(text: str) -> bool:
    """Whether a text is a JSON number that programs can hold, or true, false or null."""
    if len(text) > MAX_DIGITS or _SCALAR.fullmatch(text) is None:
        return False
    return text[0] in "tfn" or isfinite(float(text))


def whole_characters(text: str) -> str:
    """JSON with U+FFFD for each half of a character, which no text can hold; the rest stays.

    Keys that differ in such halves alone become equal: parse what this gives, not what it got.

    Args:
        text: JSON, whose strings may have halves as they are or escaped.
    """
    if _HALF_ESCAPES.search(text):
        text = _HALF_ESCAPES.sub(_whole, text)
    return _HALVES.sub("\ufffd", text)


def _whole(found: re.Match[str]) -> str:
    return found[0] if len(found[2]) == _PAIR_LENGTH else found[1] + "\ufffd"


class NotJson(ValueError):
    """A text is no JSON value, or one that readers take in different ways."""


def parse_json(text: str, depth: int = MAX_DEPTH) -> Any:
    """The value of a whole text; numbers are floats.

    Args:
        depth: of lists and objects in one another.

    Raises:
        NotJson: it is none, is nested too deep, a number has more than `MAX_DIGITS` or is too large
            for a 64-bit float, or an object has a key twice. Says which, for a sentence.
    """
    if _deepest(text) > depth:
        raise NotJson(f"it is nested more than {depth} deep")
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_no_constant,
        )
    except NotJson:
        raise
    except (ValueError, RecursionError) as error:
        raise NotJson(f"it is no JSON ({error})") from None


def _number(text: str) -> float:
    if len(text) > MAX_DIGITS:
        raise NotJson(f"a number in it has more than {MAX_DIGITS} digits")
    number = float(text)
    if not isfinite(number):
        raise NotJson(f"the number {text[:40]} in it is too large for a 64-bit float")
    return number


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise NotJson(f"the key {twice[:40]!a} is in one object twice")
    return made


def _no_constant(name: str) -> Any:
    raise NotJson(f"{name} in it is no JSON")


def _deepest(text: str) -> int:
    """Brackets in one another."""
    depth = deepest = 0
    for part in _BRACKETS.findall(text):
        depth += _STEPS.get(part, 0)
        deepest = max(deepest, depth)
    return deepest
