"""Grammars of answers: where reasoning and calls begin and end in a model's text.

A call that turns out malformed is text again, from its opening marker to the character that can
not belong to it; what follows is read anew, so a whole call behind a broken one is found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from head.text.channel_output import Output
from head.text.channel_reader import Ended, Malformed, Marks, Reader, Steps
from head.text.tool_calls import Tools


class Turn:
    """One answer that is being read: what a grammar works on."""

    __slots__ = ("out", "reader", "section", "tools")

    def __init__(self, out: Output, tools: Tools) -> None:
        self.reader = Reader()
        self.out = out
        self.tools = tools
        #: What ends the list of calls that is open and of which one was given; empty: none is.
        self.section = ""

    def call(self, name: str, arguments: str) -> None:
        """A call is whole; what was read up to here is its own and never text."""
        self.out.call(name, arguments)
        self.reader.record()


#: Reads a call, or several, from behind an opening marker, which it gets.
CallGrammar = Callable[[Turn, str], Steps[None]]
#: Reads an answer.
Grammar = Callable[[Turn], Steps[None]]


def attempt(turn: Turn, before: str, steps: Steps[None]) -> Steps[bool]:
    """Read a call; without a whole one all of it is text. Gives whether there was one.

    Args:
        before: what was read of it already.
    """
    turn.reader.record(before)
    try:
        yield from steps
    except Malformed as error:
        text = turn.reader.recorded()
        if isinstance(error, Ended) and turn.reader.cut:
            turn.out.text.markup()
        else:
            turn.out.text.add(text)
        return False
    turn.reader.recorded()
    return True


@dataclass(frozen=True)
class Marked:
    """Text with reasoning and calls between markers; the grammar of most formats.

    Attributes:
        reasoning: where it begins and ends, as pairs. It is looked for until there is text, since
            later such a marker is one that the text tells of.
        calls: what reads the calls behind each of their opening markers.
        sections: for each marker that opens a list of calls, what ends it.
        first: reads a call that has no marker and stands where text would begin.
    """

    reasoning: tuple[tuple[str, str], ...] = ()
    calls: Mapping[str, CallGrammar] | None = None
    sections: Mapping[str, str] | None = None

    def __call__(self, turn: Turn) -> Steps[None]:
        """Read an answer."""
        while True:
            marker = yield from turn.reader.until(
                self._marks(bool(turn.tools), turn.section), turn.out.text.add
            )
            if not marker:
                if turn.reader.dropped:
                    turn.out.text.markup()
                return
            if marker == turn.section:
                turn.section = ""
                turn.out.text.markup()
            elif marker in self._ends:
                if turn.out.text.started:
                    turn.out.text.add(marker)
                else:
                    yield from self.reason(turn, self._ends[marker])
            elif self.calls is not None:
                yield from attempt(turn, marker, self.calls[marker](turn, marker))

    def reason(self, turn: Turn, end: str) -> Steps[None]:
        """Read reasoning from behind its beginning."""
        turn.out.text.drop_line_ends()
        turn.out.reasoning.drop_line_ends()
        marker = yield from turn.reader.until(_single(end), turn.out.reasoning.add)
        if marker:
            turn.out.reasoning.markup()

    @functools.cached_property
    def _ends(self) -> dict[str, str]:
        return dict(self.reasoning)

    def _marks(self, tools: bool, section: str) -> Marks:
        calls = (*(self.calls or ()), section) if tools and section else self.calls or ()
        return _marks((*self._ends, *(calls if tools else ())))


@functools.cache
def _marks(texts: tuple[str, ...]) -> Marks:
    return Marks(texts)


def _single(text: str) -> Marks:
    return _marks((text,))


def plain(turn: Turn) -> Steps[None]:
    """All of it is text."""
    nothing = _marks(())
    yield from turn.reader.until(nothing, turn.out.text.add)
