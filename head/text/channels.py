"""Splits a model's answer into text, reasoning and tool calls as it comes.

Pure: what it gives, joined, depends on the answer's text alone and not on how it was cut, so an
answer can be split again from its tokens after any restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from head.text.channel_format import ChannelFormat
from head.text.channel_formats import FORMATS, choose_format
from head.text.channel_grammar import Turn
from head.text.channel_output import Output, Pieces
from head.text.tool_calls import ToolCall, Tools

__all__ = [
    "FORMATS",
    "ChannelFormat",
    "ChannelSplitter",
    "Pieces",
    "ToolCall",
    "choose_format",
]


class ChannelSplitter:
    """Splits one answer, from its start. One per reader; used by one thread.

    Args:
        form: how the model marks reasoning and calls.
        tools: those of the request, in the form of the API. Only they can be called; without any
            the markup of calls is text.
        call_id: makes the id of a call from its index.
        opened: the text that the prompt ends with after the last message, such as `<think>`; what
            it opens is open.
        parallel: whether there may be more than one call; the calls after the first are left out.
        only_calls: behind the reasoning that the prompt opened the answer can be nothing but calls
            (see `ChannelFormat.structural`): none is looked for in it, and of one that is cut
            nothing is text.
    """

    __slots__ = ("_over", "_steps", "_turn")

    def __init__(
        self,
        form: ChannelFormat,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        call_id: Callable[[int], str],
        opened: str = "",
        parallel: bool = True,
        only_calls: bool = False,
    ) -> None:
        self._turn = Turn(Output(call_id, parallel=parallel), Tools(tools), only_calls=only_calls)
        self._steps = form.grammar(self._turn, opened)
        self._over = False
        next(self._steps)
        self._turn.out.forget()

    def push(self, text: str) -> Pieces:
        """Take the next text, control texts of the format in it; gives what it completes."""
        self._turn.reader.feed(text)
        self._step()
        return self._turn.out.take()

    def finish(self, *, cut: bool) -> Pieces:
        """The answer ends here; gives what only the end completes.

        Args:
            cut: the model was not done. A call that is open is none then, and its markup no text.
        """
        self._turn.reader.end(cut=cut)
        self._step()
        self._turn.out.end()
        return self._turn.out.take()

    def _step(self) -> None:
        if self._over:
            return
        try:
            next(self._steps)
        except StopIteration:
            self._over = True
