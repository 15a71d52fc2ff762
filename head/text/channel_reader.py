"""Text that comes in pieces, read by a grammar that waits for more.

A grammar is a generator: it reads what there is and yields where it needs more. So it is written
as if the whole text were there, and what it finds can not depend on how the text was cut. Every
character is looked at a bounded number of times, however small the pieces are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
#: Steps of a grammar; each yield waits for the next piece.
Steps = Generator[None, None, T]

#: Of a marker that the end of an answer cuts, this many characters are enough to be sure of it.
SURE_OF_MARKER = 3


class Malformed(Exception):
    """What was read since the record began is not what the grammar wants."""


class Ended(Malformed):
    """The text ended in the middle of it."""


class Marks:
    """Texts that are looked for at once; none begins with another.

    Args:
        texts: none empty.
    """

    __slots__ = ("_longest", "_pattern", "_prefixes", "apart", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(dict.fromkeys(texts))
        pairs = [(text, other) for text in self.texts for other in self.texts if text is not other]
        if any(other.startswith(text) for text, other in pairs):
            raise ValueError(f"of {self.texts} one begins with another; leave one of them out")
        #: None is inside another, so the first to start in a text is the first to end.
        self.apart = not any(text in other for text, other in pairs)
        self._pattern = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        self._prefixes = frozenset(text[:n] for text in self.texts for n in range(1, len(text)))
        self._longest = max(map(len, self._prefixes), default=0)

    def find(self, text: str, start: int) -> re.Match[str] | None:
        """The first of them from `start` on."""
        return self._pattern.search(text, start)

    def undecided(self, text: str, start: int) -> int:
        """How many characters at the end of a text may be the beginning of one."""
        for count in range(min(self._longest, len(text) - start), 0, -1):
            if text[len(text) - count :] in self._prefixes:
                return count
        return 0

    def at(self, text: str, start: int) -> str:
        """The one that stands at a place; nothing when none does."""
        found = self._pattern.match(text, start)
        return found[0] if found is not None else ""

    def begun(self, text: str, start: int) -> int:
        """How many characters from a place on are the beginning of one."""
        count = 0
        while start + count < len(text) and text[start : start + count + 1] in self._prefixes:
            count += 1
        return count


class Reader:
    """What is known of a text and not read yet. `feed` and `end` drive it, one grammar reads it."""

    __slots__ = ("_record", "cut", "dropped", "ended", "pos", "sure", "text")

    def __init__(self) -> None:
        self.text = ""
        #: Place in `text` of the first character that was not read.
        self.pos = 0
        self.ended = False
        #: The text ended before its writer meant it to.
        self.cut = False
        #: A marker that the end left unfinished was dropped.
        self.dropped = False
        #: How many characters of a marker are enough to be sure of it.
        self.sure = SURE_OF_MARKER
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        """Add a piece; what was read is forgotten."""
        self.text = self.text[self.pos :] + text
        self.pos = 0

    def end(self, *, cut: bool) -> None:
        """There is no more."""
        self.ended, self.cut = True, cut

    # --- records ------------------------------------------------------------------------------

    def record(self, before: str = "") -> None:
        """Keep what is read from here on, after a text that was read before."""
        self._record = [before] if before else []

    def recorded(self) -> str:
        """What was read since `record`, which ends with this."""
        kept, self._record = self._record or [], None
        return "".join(kept)

    # --- reading ------------------------------------------------------------------------------

    def more(self) -> Steps[bool]:
        """Wait for a character; False when the text has ended."""
        while self.pos >= len(self.text):
            if self.ended:
                return False
            yield
        return True

    def need(self) -> Steps[str]:
        """The next character, which stays unread.

        Raises:
            Ended: there is none.
        """
        if self.pos >= len(self.text) and not (yield from self.more()):
            raise Ended
        return self.text[self.pos]

    def take(self, end: int) -> str:
        """Read up to a place in `text`."""
        taken = self.text[self.pos : end]
        self.pos = end
        if self._record is not None:
            self._record.append(taken)
        return taken

    def back(self, text: str) -> None:
        """Have what was read last unread; it is of the piece that is there."""
        self.pos -= len(text)

    def until(self, marks: Marks, sink: Callable[[str], object]) -> Steps[str]:
        """Read to the first marker, and it; gives it, or nothing when the text ends before one.

        Args:
            marks: apart from one another.
            sink: gets the text before it as it comes. Of a marker that a cut left unfinished it
                gets nothing, unless so little of it is there that it may well be text.
        """
        if not marks.apart:
            raise ValueError(f"of {marks.texts} one is inside another; leave one of them out")
        while True:
            found = marks.find(self.text, self.pos)
            if found is not None:
                if found.start() > self.pos:
                    sink(self.take(found.start()))
                return self.take(found.end())
            held = marks.undecided(self.text, self.pos)
            if self.ended and not (self.cut and held >= self.sure):
                held = 0
            if len(self.text) - held > self.pos:
                sink(self.take(len(self.text) - held))
            if self.ended:
                self.dropped = bool(self.take(len(self.text)))
                return ""
            yield

    def collect(self, marks: Marks) -> Steps[tuple[str, str]]:
        """The text before the first marker, and the marker.

        Raises:
            Ended: there is none.
        """
        parts: list[str] = []
        marker = yield from self.until(marks, parts.append)
        if not marker:
            raise Ended
        return "".join(parts), marker

    def over(self) -> Steps[bool]:
        """Whether the writer ended the text here."""
        return not (yield from self.more()) and not self.cut

    def one_of(self, marks: Marks) -> Steps[str]:
        """Read the marker that stands here.

        Raises:
            Malformed: there is none, and nothing was read; another marker may stand here.
        """
        while True:
            marker = marks.at(self.text, self.pos)
            if marker:
                return self.take(self.pos + len(marker))
            begun = marks.begun(self.text, self.pos)
            if self.pos + begun < len(self.text):
                raise Malformed
            if self.ended:
                self.take(len(self.text))
                raise Ended
            yield

    def skip(self, characters: str = " \t\r\n") -> Steps[None]:
        """Read over white space, or over other characters; they may be the last."""
        while (yield from self.more()):
            end = self.pos
            while end < len(self.text) and self.text[end] in characters:
                end += 1
            self.take(end)
            if end < len(self.text):
                return

    def run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Characters of one kind, as many as there are.

        Args:
            pattern: matches each run of such characters, the empty one too, whatever is before it:
                a piece may begin anywhere in one.
        """
        parts: list[str] = []
        while (yield from self.more()):
            found = pattern.match(self.text, self.pos)
            end = found.end() if found is not None else self.pos
            parts.append(self.take(end))
            if end < len(self.text):
                break
        return "".join(parts)

    def word(self, pattern: re.Pattern[str]) -> Steps[str]:
        """The same, with something behind it that shows where it ends.

        Raises:
            Ended: there is nothing.
        """
        word = yield from self.run(pattern)
        yield from self.need()
        return word
