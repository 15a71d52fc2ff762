"""Grammars of answers: where reasoning and calls begin and end in a model's text.

A call that turns out malformed is text again, from its opening marker to the character that can
not belong to it; what follows is read anew, so a whole call behind a broken one is found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from head.text.channel_output import Channel, Output
from head.text.channel_reader import SURE_OF_MARKER, Ended, Malformed, Marks, Reader, Steps
from head.text.tool_calls import Tools

#: Calls that may wait until it is known whether they count; one event then has all of them.
MAX_CALLS_AT_ONCE = 65_536


class Turn:
    """One answer that is being read: what a grammar works on."""

    __slots__ = ("held", "only_calls", "out", "reader", "section", "tools")

    def __init__(self, out: Output, tools: Tools, *, only_calls: bool = False) -> None:
        self.reader = Reader()
        #: Behind the reasoning that the prompt opened there can be calls, and nothing else.
        self.only_calls = only_calls
        self.out = out
        self.tools = tools
        #: The list of calls that is open, and of which one was given.
        self.section: Section | None = None
        #: Calls that are whole and of which it is not known whether they count.
        self.held: list[tuple[str, str]] | None = None

    def call(self, name: str, arguments: str) -> None:
        """A call is whole; what was read up to here is its own and never text."""
        if self.held is not None:
            if len(self.held) == MAX_CALLS_AT_ONCE:
                raise Malformed
            self.held.append((name, arguments))
            return
        self.out.call(name, arguments)
        if not self.only_calls:
            self.reader.sure = SURE_OF_MARKER
        self.reader.record()

    def end_reasoning(self) -> None:
        """What the prompt opened is over, or it opened nothing."""
        if self.only_calls:
            # What looks like a marker is one, and line ends are its own.
            self.reader.sure = 1
            self.out.text.drop_line_ends()


#: Reads a call, or several, from behind an opening marker.
CallGrammar = Callable[[Turn], Steps[None]]
#: Reads an answer. It gets what the prompt opened.
Grammar = Callable[[Turn, str], Steps[None]]


@dataclass(frozen=True)
class Section:
    """A list of calls between markers. A call without the list's markers is read, too.

    Attributes:
        begin, end: of the list.
        open: of each call; empty when calls have no marker of their own.
        call: reads one from behind its `open`.
    """

    begin: str
    end: str
    open: str
    call: CallGrammar

    def calls(self) -> dict[str, CallGrammar]:
        """What reads calls behind each marker."""
        return {self.begin: self.read_all, self.open: self.read_one}

    def read_all(self, turn: Turn) -> Steps[None]:
        """Read a list from behind its beginning."""
        while True:
            yield from turn.reader.skip()
            marker = yield from turn.reader.one_of(marks_of(self.open, self.end))
            if marker == self.end:
                turn.section = None
                return
            yield from self.read_one(turn)
            if (yield from turn.reader.over()):
                return

    def read_one(self, turn: Turn) -> Steps[None]:
        """Read a call from behind its beginning."""
        yield from self.call(turn)
        turn.section = self


class Outcome(Enum):
    """What became of an attempt to read a call."""

    WHOLE = "whole"
    TEXT = "text"
    CUT = "cut"


def attempt(
    turn: Turn,
    before: str,
    steps: Steps[None],
    sink: Channel | None = None,
    *,
    unsure: int = 0,
) -> Steps[Outcome]:
    """Read a call; what is none is text, and what the end of the answer cuts is neither.

    Args:
        before: what was read of it already.
        sink: gets the text, when it is not the answer's.
        unsure: so many characters that the end cuts may well be text, and are.
    """
    turn.reader.record(before)
    try:
        yield from steps
    except Malformed as error:
        text = turn.reader.recorded()
        if isinstance(error, Ended) and turn.reader.cut:
            if len(text) > unsure:
                (sink or turn.out.text).markup()
            else:
                (sink or turn.out.text).add(text)
            return Outcome.CUT
        (sink or turn.out.text).add(text)
        return Outcome.TEXT
    turn.reader.recorded()
    return Outcome.WHOLE


@dataclass(frozen=True)
class Marked:
    """Text with reasoning and calls between markers; the grammar of most formats.

    Attributes:
        reasoning: where it begins and ends, as pairs. It is looked for until there is text, since
            later such a marker is one that the text tells of.
        calls: what reads the calls behind each of their opening markers.
        first: reads calls that have no marker and stand where text would begin.
        wrappers: markers around text that are no text.
    """

    reasoning: tuple[tuple[str, str], ...] = ()
    calls: Mapping[str, CallGrammar] = field(default_factory=dict)
    first: CallGrammar | None = None
    wrappers: tuple[str, ...] = ()

    def __call__(self, turn: Turn, opened: str) -> Steps[None]:
        """Read an answer."""
        yield from self._go_on(turn, opened)
        while True:
            if self.first is not None and turn.tools and not turn.out.text.started:
                yield from attempt(turn, "", self.first(turn))
            marker = yield from turn.reader.until(self._marks(turn), turn.out.text.add)
            if not marker:
                if turn.reader.dropped:
                    turn.out.text.markup()
                return
            if turn.section is not None and marker == turn.section.end:
                turn.section = None
                turn.out.text.markup()
            elif marker in self.wrappers:
                turn.out.text.markup()
            elif marker in self._ends:
                if turn.out.text.started:
                    turn.out.text.add(marker)
                else:
                    yield from self._reason(turn, self._ends[marker])
            else:
                yield from attempt(turn, marker, self.calls[marker](turn))

    def _go_on(self, turn: Turn, opened: str) -> Steps[None]:
        """Go on from what the prompt opened."""
        if any(begin in opened for begin, _ in self.reasoning):
            turn.out.text.drop_line_ends()
        end = open_end(self.reasoning, opened)
        if end:
            yield from self._reason(turn, end)
        turn.end_reasoning()

    def _reason(self, turn: Turn, end: str) -> Steps[None]:
        """Read reasoning from behind its beginning.

        Calls in it that the answer ends with count, since models forget to end it; calls that more
        reasoning follows are those that it tells of.
        """
        turn.out.text.drop_line_ends()
        turn.out.reasoning.drop_line_ends()
        # Those that have to come stand behind it.
        calls = tuple(self.calls) if turn.tools and not turn.only_calls else ()
        while True:
            marker = yield from turn.reader.until(marks_of(end, *calls), turn.out.reasoning.add)
            if not marker and not turn.reader.dropped:
                return
            if marker == end or not marker:
                turn.out.reasoning.markup()
                return
            if (yield from self._last_calls(turn, marker)):
                return

    def _last_calls(self, turn: Turn, marker: str) -> Steps[bool]:
        """Read calls in reasoning; they count when they are the last of the answer."""
        turn.held, section = [], turn.section
        held = turn.held
        try:
            outcome = yield from attempt(
                turn, marker, self._to_the_end(turn, marker), turn.out.reasoning
            )
        finally:
            turn.held = None
        if outcome is Outcome.TEXT:
            turn.section = section
            return False
        turn.out.reasoning.markup()
        for name, arguments in held:
            turn.out.call(name, arguments)
        return True

    def _to_the_end(self, turn: Turn, marker: str) -> Steps[None]:
        while True:
            yield from self.calls[marker](turn)
            yield from turn.reader.skip()
            if not (yield from turn.reader.more()):
                return
            marker = yield from turn.reader.one_of(marks_of(*self.calls))

    @functools.cached_property
    def _ends(self) -> dict[str, str]:
        return dict(self.reasoning)

    def _marks(self, turn: Turn) -> Marks:
        always = (*self._ends, *self.wrappers)
        if not turn.tools:
            return marks_of(*always)
        if turn.section is None:
            return marks_of(*always, *self.calls)
        return marks_of(*always, *self.calls, turn.section.end)


def open_end(pairs: Sequence[tuple[str, str]], opened: str) -> str:
    """What ends the reasoning that a prompt opened and did not end; empty: there is none.

    Args:
        pairs: how reasoning begins and ends.
        opened: the text that the prompt ends with.
    """
    begin, end = max(pairs, key=lambda pair: opened.rfind(pair[0]), default=("", ""))
    return end if begin and opened.rfind(begin) > opened.rfind(end) else ""


@functools.lru_cache(maxsize=1024)
def marks_of(*texts: str) -> Marks:
    """These markers, made once."""
    return Marks(texts)


def plain(turn: Turn, _: str) -> Steps[None]:
    """All of it is text."""
    yield from turn.reader.until(marks_of(), turn.out.text.add)
