"""What a splitter gives: text, reasoning and calls, with the line ends around markup taken off.

Templates put line ends around markup: after `<think>`, before and after `</think>`, before and
between calls, and behind them where there was no text yet, else they are between text and text.
They belong to the markup. A run of line ends is therefore held back until it is
known what follows it, and comes with the text that does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from head.text.tool_calls import ToolCall


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a push completed."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls)


class Channel:
    """One channel's text as it comes."""

    __slots__ = ("_drops", "_held", "_pieces", "said", "started")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        #: Line ends that were read and may belong to markup.
        self._held = 0
        #: The line ends that come next belong to markup.
        self._drops = False
        #: Something but line ends was given, since the last call or at all.
        self.started = self.said = False

    def add(self, text: str) -> None:
        """More of it."""
        if self._drops:
            text = text.lstrip("\n")
            if not text:
                return
            self._drops = False
        body = text.rstrip("\n")
        if body:
            self._pieces.append("\n" * self._held + body)
            self.started = self.said = True
            self._held = 0
        self._held += len(text) - len(body)

    def markup(self) -> None:
        """Markup is here: the line ends before it are its own."""
        self._held = 0

    def drop_line_ends(self) -> None:
        """The line ends that follow are markup's, too."""
        self._held, self._drops = 0, True

    def end(self) -> None:
        """No markup follows."""
        if self._held:
            self._pieces.append("\n" * self._held)
            self._held = 0

    def forget(self) -> None:
        """What came so far is no part of the answer; what markup does to what follows stays."""
        self._pieces.clear()
        self._held, self.started, self.said = 0, False, False

    def take(self) -> str:
        """What came since the last time."""
        taken = "".join(self._pieces)
        self._pieces.clear()
        return taken


class Output:
    """All channels of an answer.

    Args:
        call_id: makes the id of a call from its index.
        parallel: whether there may be more than one call; others are left out.
    """

    __slots__ = ("_call_id", "_calls", "_count", "_parallel", "_quiet", "reasoning", "text")

    def __init__(self, call_id: Callable[[int], str], *, parallel: bool) -> None:
        self._call_id = call_id
        self._parallel = parallel
        self._calls: list[ToolCall] = []
        self._count = 0
        #: What follows the last call and is only line ends is not text.
        self._quiet = False
        self.text = Channel()
        self.reasoning = Channel()

    def call(self, name: str, arguments: str) -> None:
        """A whole call."""
        self.text.markup()
        if not self.text.said:
            self.text.drop_line_ends()
        self._quiet = True
        if not self._count or self._parallel:
            self._calls.append(ToolCall(self._count, self._call_id(self._count), name, arguments))
            self._count += 1
        self.text.started = False

    def forget(self) -> None:
        """What came so far is no part of the answer."""
        self.text.forget()
        self.reasoning.forget()
        self._calls.clear()
        self._count, self._quiet = 0, False

    def end(self) -> None:
        """The answer is over."""
        if self._quiet and not self.text.started:
            self.text.markup()
        self.text.end()
        self.reasoning.end()

    def take(self) -> Pieces:
        """What came since the last time."""
        calls = tuple(self._calls)
        self._calls.clear()
        return Pieces(self.text.take(), self.reasoning.take(), calls)
