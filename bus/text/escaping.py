"""Text of users on its way through a chat template, so that none of it becomes a control token.

A template writes control tokens and users' text into one string; afterwards nobody can tell whose
`<|im_end|>` it is. So, before rendering, each control token inside a user's text becomes one
private-use character, and so does a beginning or an end of the text that could make a control
token together with what the template puts beside it. After rendering, the characters are turned
back into the text they stand for. Templates may trim or compare the text: spaces, and all that is
no part of a control token, stay as they are.

A template that takes words out of a text, or writes it small, can still make a control token of
what is left. So templates mark their own ones (head/text/own_tokens.py), and what else is found
after rendering is escaped then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

from bus.errors import TooLarge
from bus.text.token_texts import token_pattern

#: Supplementary private use area B; text that has such characters itself has them escaped too, and
#: with them the last character of all, which is never used here: callers may mark places with it.
_FIRST, _LAST = 0x100000, 0x10EFFF
#: The rest of it is for the control tokens that a template writes itself.
OWN_FIRST, OWN_LAST = 0x10F000, 0x10FFFD
MARK = "\U0010ffff"

#: From where to where a control token reaches.
Span = tuple[int, int]
_ESCAPED = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
_PRIVATE = f"[{chr(_FIRST)}-{MARK}]"
_BESIDE_PRIVATE = re.compile(f"({_PRIVATE}+)")


@dataclass(frozen=True, slots=True)
class _Tables:
    """What is looked for, of one model's control tokens."""

    special: tuple[str, ...]
    #: All of them in one text; what is between them is in no other.
    every: str
    longest: int
    #: Beginnings and ends of control tokens, without the whole ones.
    begins: frozenset[str]
    ends: frozenset[str]
    found: re.Pattern[str]
    tokens: re.Pattern[str]
    characters: frozenset[str]


@lru_cache(maxsize=8)
def _tables(texts: tuple[str, ...]) -> _Tables:
    """Kept, since some models have thousands of control tokens."""
    special = tuple(sorted((text for text in texts if text), key=len, reverse=True))
    cuts = [(text[:cut], text[cut:]) for text in special for cut in range(1, len(text))]
    tokens = token_pattern(special)
    return _Tables(
        special=special,
        every=MARK.join(special),
        longest=len(special[0]) if special else 0,
        begins=frozenset(begin for begin, _ in cuts),
        ends=frozenset(end for _, end in cuts),
        found=re.compile(f"{tokens.pattern}|{_PRIVATE}"),
        tokens=tokens,
        characters=frozenset("".join(special)),
    )


def control_pattern(special: Collection[str]) -> re.Pattern[str]:
    """What finds control tokens in a text."""
    return _tables(tuple(special)).tokens


class Escaper:
    """Escapes the texts of one rendering and turns them back.

    Attributes:
        texts: of the model's control tokens.

    Args:
        special: texts of the model's control tokens.
    """

    def __init__(self, special: Collection[str]) -> None:
        self.texts = tuple(special)
        tables = _tables(self.texts)
        self._tokens = tables.tokens
        self._sensitive = tables.characters
        self._special = tables.special
        self._every = tables.every
        self._longest = tables.longest
        self._begins = tables.begins
        self._ends = tables.ends
        self._found = tables.found
        self._characters: dict[str, str] = {}
        self._originals: dict[str, str] = {}

    @property
    def used(self) -> bool:
        """Whether anything was escaped."""
        return bool(self._characters)

    def escape_inside(self, text: str) -> str:
        """The text with whole control tokens escaped; for names and values templates compare."""
        return self._found.sub(lambda found: self._character(found[0]), text)

    def escape(self, text: str) -> str:
        """The text with all escaped that could become part of a control token."""
        if 0 < len(text) <= self._longest and text in self._every:
            return self._character(text)
        return self.escape_value(text)

    def escape_value(self, text: str) -> str:
        """The same for a text that templates may compare with a word.

        It differs where the whole text lies in the middle of a control token, as "object" does in
        `<|object_ref_start|>`: only a template that writes both sides of it makes one of that.
        """
        # Ends first: what is inside is then cut off from them.
        start = self._overlap_at_start(text)
        end = self._overlap_at_end(text[start:])
        middle = self.escape_inside(text[start : len(text) - end])
        head = self._character(text[:start]) if start else ""
        tail = self._character(text[len(text) - end :]) if end else ""
        return head + middle + tail

    def mask(self, text: str) -> str:
        """The text with each character escaped that may come to stand in a control token.

        Whatever a template takes out of it or puts together: none of it becomes one. Letters and
        digits are all escaped, since a template may write them large or small.
        """
        table = {
            ord(letter): self._character(letter)
            for letter in set(text)
            if self._may_stand_in_one(letter)
        }
        return text.translate(table)

    def tokens(self, text: str) -> list[Span]:
        """Where control tokens are in a text."""
        return [found.span() for found in self._tokens.finditer(text)]

    def escape_between(self, text: str, own: Iterable[Span]) -> str:
        """A rendered text with all escaped that makes a control token beside the template's own.

        Args:
            text: with escapes in it.
            own: where the template's control tokens are, in order.
        """
        own = list(own)
        if self.tokens(text) == own:
            return text
        parts = []
        begin = 0
        for start, end in own:
            parts += [self._escape_rendered(text[begin:start]), text[start:end]]
            begin = end
        return "".join([*parts, self._escape_rendered(text[begin:])])

    def _escape_rendered(self, text: str) -> str:
        pieces = _BESIDE_PRIVATE.split(text)
        pieces[::2] = map(self.escape, pieces[::2])
        return "".join(pieces)

    def _may_stand_in_one(self, letter: str) -> bool:
        if letter.isspace():
            return letter in self._special
        changes = letter.isalnum() or letter != letter.lower() or letter != letter.upper()
        return changes or letter in self._sensitive or chr(_FIRST) <= letter

    def restore(self, text: str) -> str:
        """The text with all escapes turned back."""
        originals = self._originals
        if not originals:
            return text
        return _ESCAPED.sub(lambda found: originals.get(found[0], found[0]), text)

    def _character(self, text: str) -> str:
        if text not in self._characters:
            code = _FIRST + len(self._characters)
            if code > _LAST:
                raise TooLarge(
                    f"the messages have more than {_LAST - _FIRST} different texts to escape; "
                    "send fewer private-use characters",
                    param="messages",
                )
            self._characters[text] = chr(code)
            self._originals[chr(code)] = text
        return self._characters[text]

    def _overlap_at_start(self, text: str) -> int:
        """Length of the longest beginning of the text that ends a control token."""
        sizes = range(min(self._longest - 1, len(text)), 0, -1)
        return next((size for size in sizes if text[:size] in self._ends), 0)

    def _overlap_at_end(self, text: str) -> int:
        """Length of the longest end of the text that begins a control token."""
        sizes = range(min(self._longest - 1, len(text)), 0, -1)
        return next((size for size in sizes if text[-size:] in self._begins), 0)
