"""Regular expressions of JSON Schema, translated for the grammar engine, or refused.

`pattern` is written in ECMA-262's syntax and is found anywhere in a text; the grammar engine reads
Rust's syntax, which gives another meaning to some of it (`[[a]]`, `[a&&b]`, `(?x)`, `\\A`, `.`).
So the pattern is read here and written anew from its parts. Where ECMA-262 and the validators that
people use disagree (Unicode digits, letters and spaces), only what all of them accept is allowed.

Control characters that JSON can only write as \\uXXXX are in no answer (bus/text/constraints.py).
They are left out of every class here, and the engine must not see them: of a class with all control
characters it makes one with a quote, and a single one makes it forget what stands beside.

Source: ECMA-262, section 22.2.1 "Patterns", with the `u` flag; Annex B for `{`, `}` and `]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Groups inside groups. Each costs a few stack frames here and in the engine.
MAX_DEPTH = 50
#: Of one `{n,m}`; more is more than an answer can have.
MAX_REPEAT = 100_000
#: So many of a number's first digits tell whether it is more.
_REPEAT_DIGITS = 7

_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(,([0-9]*))?\}")
_FROM_NONE = re.compile(r"\{,[0-9]*\}")
_PROPERTY = re.compile(r"\{[A-Za-z_]+(=[A-Za-z_]+)?\}")
_GROUP_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*>")
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}

#: What has to be written as \\uXXXX. Of control characters \b, \t, \n, \f and \r are left.
_UNWRITABLE = ((0x00, 0x07), (0x0B, 0x0B), (0x0E, 0x1F), (0x7F, 0x7F))
_UNWRITABLE_ITEMS = r"\x{0}-\x{7}\x{B}\x{E}-\x{1F}\x{7F}"

_SPACES = r"\t\n\f\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
_ALL_SPACES = _SPACES + r"\x{B}\x{1C}-\x{1F}\x{85}\x{FEFF}"
_ALL_WORD = r"\p{L}\p{N}_"
_WORD = "0-9A-Za-z_"
#: Class escapes as insides of a class: what every reading has in it, and what any reading has.
_NARROW = {
    "d": "0-9",
    "D": rf"[^\p{{Nd}}{_UNWRITABLE_ITEMS}]",
    "w": _WORD,
    "W": f"[^{_ALL_WORD}{_UNWRITABLE_ITEMS}]",
    "s": _SPACES,
    "S": f"[^{_ALL_SPACES}{_UNWRITABLE_ITEMS}]",
}
_BROAD = {
    "d": r"\p{Nd}",
    "D": "[^0-9]",
    "w": _ALL_WORD,
    "W": f"[^{_WORD}]",
    "s": _ALL_SPACES,
    "S": f"[^{_SPACES}]",
}
_ANY_AT_ALL = f"[^{_UNWRITABLE_ITEMS}]"
_ANY = rf"[^\n\r\x{{2028}}\x{{2029}}{_UNWRITABLE_ITEMS}]"
_ANY_TEXT = "(?s:.*)"


class PatternRefused(ValueError):
    """A pattern that can not be honoured; says why."""


@dataclass(slots=True)
class _Alternative:
    """One side of a `|`, without its anchors.

    Attributes:
        group: the alternatives inside, when it is one group and nothing else.
    """

    body: str
    at_start: bool = False
    at_end: bool = False
    group: list[_Alternative] | None = None


def translate(pattern: str) -> str:
    """The same language as a regular expression of Rust's syntax that matches a whole text.

    Args:
        pattern: ECMA-262, searched for anywhere in a text unless it is anchored.

    Returns:
        `^...$`; whatever it matches, the pattern matches.

    Raises:
        PatternRefused: it has a part that the engine does not have, or that is no ECMA-262.
    """
    reader = _Reader(pattern)
    found = reader.alternatives(0)
    if reader.rest:
        raise reader.refused("has a ) that closes nothing")
    sides = [_searched(side) for side in _flattened(found)]
    return f"^(?:{'|'.join(sides)})$"


def is_exact(pattern: str) -> bool:
    """Whether all readings of a pattern match the same texts, so that its translation does, too.

    Args:
        pattern: one that `translate` takes.
    """
    reader = _Reader(pattern)
    reader.alternatives(0)
    return reader.exact


def _flattened(sides: list[_Alternative]) -> list[_Alternative]:
    """Alternatives with sole groups taken apart, so that anchors inside them are at the edge."""
    found: list[_Alternative] = []
    for side in sides:
        if side.group is None:
            found.append(side)
            continue
        found += [
            _Alternative(
                inner.body,
                at_start=side.at_start or inner.at_start,
                at_end=side.at_end or inner.at_end,
            )
            for inner in _flattened(side.group)
        ]
    return found


def _searched(side: _Alternative) -> str:
    before = "" if side.at_start else _ANY_TEXT
    after = "" if side.at_end else _ANY_TEXT
    return f"{before}{side.body}{after}"


def exact_character(code: int) -> str:
    """A code point as a part of a regular expression of Rust's syntax, in a class or outside."""
    character = chr(code)
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{{{code:X}}}"


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        #: Whether nothing was there so far that readings differ in.
        self.exact = True

    @property
    def rest(self) -> bool:
        """Whether something is left."""
        return self._at < len(self._pattern)

    def refused(self, why: str) -> PatternRefused:
        """An error that names the place."""
        return PatternRefused(f"the pattern {why} (character {self._at})")

    def alternatives(self, depth: int) -> list[_Alternative]:
        """Sides of `|` up to the end or to a `)`."""
        if depth > MAX_DEPTH:
            raise self.refused(f"has groups more than {MAX_DEPTH} deep")
        found = [self._alternative(depth)]
        while self._take("|"):
            found.append(self._alternative(depth))
        return found

    def _alternative(self, depth: int) -> _Alternative:
        side = _Alternative("", at_start=self._take("^"))
        atoms = 0
        while self.rest and not self._next_is("|", ")"):
            if self._take("$"):
                side.at_end = True
                if self.rest and not self._next_is("|", ")"):
                    raise self.refused("has a $ that is not at an end; only there it is supported")
                break
            inner = self._group(depth) if self._take("(") else None
            text = self._atom() if inner is None else _joined(inner)
            quantified = self._quantifier()
            atoms += 1
            for group in (side.group, inner):
                # A group is at the edges only while nothing stands beside it.
                if group is not None and (atoms > 1 or quantified):
                    self._check_no_anchor(group)
            side.group = inner if atoms == 1 and not quantified else None
            side.body += text + quantified
        return side

    def _check_no_anchor(self, inner: list[_Alternative]) -> None:
        if any(side.at_start or side.at_end for side in _flattened(inner)):
            raise self.refused("has ^ or $ inside a group; they are supported at its ends only")

    def _group(self, depth: int) -> list[_Alternative]:
        if self._take("?") and not self._take(":"):
            name = _GROUP_NAME.match(self._pattern, self._at + 1) if self._next_is("<") else None
            if name is None:
                raise self.refused(
                    "has a lookaround or flags, which are not supported; write it without"
                )
            self._at = name.end()
        inner = self.alternatives(depth + 1)
        if not self._take(")"):
            raise self.refused("has a ( that is not closed")
        return inner

    def _quantifier(self) -> str:
        found = _QUANTIFIER.match(self._pattern, self._at)
        if found is None:
            return ""
        given = [number.lstrip("0") or "0" for number in (found[1], found[3]) if number]
        # Python reads no number of thousands of digits.
        numbers = [int(number[:_REPEAT_DIGITS]) for number in given]
        if any(number > MAX_REPEAT for number in numbers):
            raise self.refused(f"repeats more than {MAX_REPEAT} times")
        if len(numbers) == 2 and numbers[0] > numbers[1]:
            raise self.refused("has a repetition whose bounds are the wrong way round")
        self._at = found.end()
        # A lazy repetition matches the same texts as a greedy one.
        self._take("?")
        if _QUANTIFIER.match(self._pattern, self._at):
            raise self.refused("repeats a repetition")
        return found[0]

    def _atom(self) -> str:
        character = self._pattern[self._at]
        if character == ".":
            self._at += 1
            self.exact = False
            return _ANY
        if character == "[":
            self._at += 1
            return self._class()
        if character == "\\":
            self._at += 1
            item = self._escape(_NARROW, in_class=False)
            return f"[{item}]" if isinstance(item, str) else self._literal(item)
        if character == "^":
            raise self.refused("has a ^ that is not at a start; only there it is supported")
        if _QUANTIFIER.match(self._pattern, self._at):
            raise self.refused("has a repetition of nothing")
        if _FROM_NONE.match(self._pattern, self._at):
            # ECMA-262 takes it for text, others for a repetition.
            raise self.refused("has a repetition without its lower bound; write {0,n}")
        self._at += 1
        return self._literal(ord(character))

    def _literal(self, code: int) -> str:
        if not _writable(code, code):
            raise self._unwritable()
        return exact_character(code)

    def _unwritable(self) -> PatternRefused:
        return self.refused(
            "asks for a control character that no answer has, since JSON would have to write it "
            "as \\uXXXX; leave it out (\\b in a class, \\t, \\n, \\f and \\r are possible)"
        )

    def _class(self) -> str:
        negated = self._take("^")
        table = _BROAD if negated else _NARROW
        items: list[str] = []
        found = 0
        while not self._take("]"):
            items += self._class_part(table, negated=negated)
            found += 1
        if negated:
            return f"[^{''.join(items)}{_UNWRITABLE_ITEMS}]"
        if not found:
            raise self.refused("has the empty class [], which nothing matches")
        if not items:
            raise self._unwritable()
        return f"[{''.join(items)}]"

    def _class_part(self, table: dict[str, str], *, negated: bool) -> list[str]:
        """A character, a range or an escape of a class, as items of one that can be written."""
        first = last = self._class_item(table)
        if self._range_follows():
            self._at += 1
            last = self._class_item(table)
            if isinstance(first, str) or isinstance(last, str) or first > last:
                raise self.refused("has a class with a range that is none")
        if isinstance(first, str) or isinstance(last, str):
            return [first] if isinstance(first, str) else []
        return [
            exact_character(a) if a == b else f"{exact_character(a)}-{exact_character(b)}"
            for a, b in ([(first, last)] if negated else _writable(first, last))
        ]

    def _range_follows(self) -> bool:
        return self._next_is("-") and self._pattern[self._at + 1 : self._at + 2] not in ("", "]")

    def _class_item(self, table: dict[str, str]) -> int | str:
        if not self.rest:
            raise self.refused("has a [ that is not closed")
        character = self._pattern[self._at]
        self._at += 1
        return self._escape(table, in_class=True) if character == "\\" else ord(character)

    def _escape(self, table: dict[str, str], *, in_class: bool) -> int | str:
        """What follows a backslash: a code point, or the inside of a class."""
        character = self._pattern[self._at : self._at + 1]
        self._at += 1
        if character in table:
            self.exact = False
            return table[character]
        if character in _CONTROL:
            return _CONTROL[character]
        if character in ("p", "P"):
            found = _PROPERTY.match(self._pattern, self._at)
            if found is None:
                raise self.refused(f"has \\{character} without a property in braces")
            self._at = found.end()
            # In a negated class it takes away less than it could; what is unwritable goes anyway.
            return f"[\\{character}{found[0]}&&{_ANY_AT_ALL}]"
        if character == "c" and re.match("[A-Za-z]", self._pattern[self._at : self._at + 1]):
            self._at += 1
            return ord(self._pattern[self._at - 1]) % 32
        if character == "0" and not self._pattern[self._at : self._at + 1].isdigit():
            return 0
        if character in ("x", "u"):
            return self._code_point(2 if character == "x" else 4)
        if character == "b" and in_class:
            return 8
        if not character or character.isalnum():
            raise self.refused(
                f"has \\{character}, which is not supported; backreferences and word boundaries "
                "are not, either"
            )
        return ord(character)

    def _code_point(self, digits: int) -> int:
        if digits == 4 and self._take("{"):
            end = self._pattern.find("}", self._at)
            code = self._hex(self._pattern[self._at : max(end, self._at)], 1, 6)
            self._at = end + 1
        else:
            code = self._hex(self._pattern[self._at : self._at + digits], digits, digits)
            self._at += digits
            if 0xD800 <= code < 0xDC00 and self._pattern.startswith("\\u", self._at):
                low = self._hex(self._pattern[self._at + 2 : self._at + 6], 4, 4)
                if 0xDC00 <= low < 0xE000:
                    self._at += 6
                    code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise self.refused("names a code point that is no character")
        return code

    def _hex(self, text: str, least: int, most: int) -> int:
        if not re.fullmatch(f"[0-9A-Fa-f]{{{least},{most}}}", text):
            raise self.refused("has an escape that is not finished")
        return int(text, 16)

    def _take(self, character: str) -> bool:
        if not self._next_is(character):
            return False
        self._at += 1
        return True

    def _next_is(self, *characters: str) -> bool:
        return self.rest and self._pattern[self._at] in characters


def _joined(inner: list[_Alternative]) -> str:
    return f"(?:{'|'.join(side.body for side in inner)})"


def _writable(first: int, last: int) -> list[tuple[int, int]]:
    """What of a range of code points can be written, as ranges."""
    found = []
    for low, high in _UNWRITABLE:
        if high < first:
            continue
        if first < low:
            found.append((first, min(last, low - 1)))
        first = max(first, high + 1)
        if first > last:
            break
    return [*found, (first, last)] if first <= last else found
