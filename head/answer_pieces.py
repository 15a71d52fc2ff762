"""An answer to a chat as callers see it: text, reasoning and tool calls, from its tokens.

What comes of the first n tokens depends on those tokens alone, not on how they came: so a reader
that continues at any cursor, at any time and after any restart, gets the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import msgpack

from bus.errors import Internal
from bus.messages.text import Described
from bus.printable import printable
from bus.text.detokenizer import Detokenizer
from bus.text.stops import StopMatcher
from head.text.channels import FORMATS, ChannelSplitter, Pieces

log = logging.getLogger(__name__)

_T = TypeVar("_T")
#: Ids of calls are this many letters and digits: what the strictest templates take.
CALL_ID_LENGTH = 9
#: Lists of tools, each of at most a megabyte, that answers have in common.
SHARED_TOOLS = 32
_CALL_ID_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """How an answer to a chat is to be read; kept with it, so that it is read the same again.

    Attributes:
        form: name of the format.
        tools: that may be called; without any the markup of calls is text.
        opened: what the prompt's end opened, such as `<think>`.
        parallel: whether there may be several calls.
        stops: texts that end the answer where they are in its text; never in the other channels.
        only_calls: behind the reasoning that the prompt opened it can be nothing but calls.
    """

    form: str
    tools: tuple[Mapping[str, Any], ...] = ()
    opened: str = ""
    parallel: bool = True
    stops: tuple[str, ...] = ()
    only_calls: bool = False

    def to_map(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "form": self.form,
            "tools": list(self.tools),
            "opened": self.opened,
            "parallel": self.parallel,
            "stops": list(self.stops),
            "only_calls": self.only_calls,
        }

    @classmethod
    def from_map(cls, kept: Mapping[str, Any]) -> Channels:
        """As it was kept; what a format that this version does not know marks is text.

        Raises:
            KeyError: something is missing.
        """
        return cls(
            form=kept["form"] if kept["form"] in FORMATS else "plain",
            tools=shared_tools(msgpack.packb(kept["tools"])),
            opened=kept["opened"],
            parallel=kept["parallel"],
            stops=tuple(kept["stops"]),
            # Not there in what older versions kept.
            only_calls=kept.get("only_calls", False),
        )


@lru_cache(maxsize=SHARED_TOOLS)
def shared_tools(packed: bytes) -> tuple[Mapping[str, Any], ...]:
    """Tools as one object for all answers that have the same: many are kept, and for long.

    Args:
        packed: a msgpack list of them.
    """
    return tuple(msgpack.unpackb(packed))


class AnswerPieces:
    """The pieces of one answer as its tokens come, cut at its first stop. Used by one thread.

    A fault in the reading of a format, which any text of a model may find, is `Internal`: it is
    this answer's alone, and stays, since what was read is lost with it.

    Args:
        known: the tokenizer.
        channels: how the answer is to be read.
        name: of the answer, among all; ids of calls are made of it.
        min_tokens: what the answer's first tokens complete is no part of a stop.
    """

    __slots__ = (
        "_detokenizer",
        "_form",
        "_is_broken",
        "_matcher",
        "_min_tokens",
        "_one_call",
        "_shown",
        "_splitter",
        "calls",
        "tokens",
    )

    def __init__(
        self, known: Described, channels: Channels, name: str, min_tokens: int = 0
    ) -> None:
        form = FORMATS[channels.form]
        self._form = form.name
        self._is_broken = False
        markers = frozenset(form.markers)
        #: Control tokens that the format has to see.
        self._shown = {
            token: text.encode()
            for token, text in zip(known.special, known.special_texts, strict=False)
            if text in markers
        }
        self._detokenizer = Detokenizer(known.vocabulary, known.special)
        self._splitter = self._sure(
            lambda: ChannelSplitter(
                form,
                channels.tools,
                call_id=lambda index: call_id(name, index),
                opened=channels.opened,
                parallel=channels.parallel,
                only_calls=channels.only_calls,
            )
        )
        self._matcher = StopMatcher(channels.stops) if channels.stops else None
        self._one_call = not channels.parallel and bool(channels.tools)
        self._min_tokens = min_tokens
        #: How many tokens of the answer it took, and calls it gave.
        self.tokens = 0
        self.calls = 0

    @property
    def stop(self) -> str:
        """The stop that the text was cut at; empty while there is none."""
        return self._matcher.stop if self._matcher is not None else ""

    def push(self, ids: Sequence[int]) -> Pieces:
        """Take the next tokens; gives what they complete and what may be shown.

        Raises:
            Internal: the answer can not be read.
        """
        return self._sure(lambda: self._push(ids))

    def _push(self, ids: Sequence[int]) -> Pieces:
        free = min(max(self._min_tokens - self.tokens, 0), len(ids))
        self.tokens += len(ids)
        if self._matcher is None:
            return self._count(self._splitter.push(self._text(ids)))
        before = self._splitter.push(self._text(ids[:free])) if free else Pieces()
        after = self._splitter.push(self._text(ids[free:]))
        return self._count(
            Pieces(
                before.text + self._matcher.push(after.text)[0],
                before.reasoning + after.reasoning,
                before.calls + after.calls,
            )
        )

    @property
    def over(self) -> bool:
        """Whether nothing more belongs to the answer: a stop, or the only call that it may have."""
        return bool(self.stop) or (self._one_call and self.calls > 0)

    def until_stop(self, ids: Sequence[int]) -> int:
        """Take the next tokens up to the one after which it is over; gives how many those are."""
        if self._matcher is None and not self._one_call:
            self.push(ids)
            return len(ids)
        for place, token in enumerate(ids):
            self.push((token,))
            if self.over:
                return place + 1
        return len(ids)

    def finish(self, *, cut: bool) -> Pieces:
        """What only the end completes.

        Args:
            cut: the model was not done: a call that is open is none, and no text either.

        Raises:
            Internal: the answer can not be read.
        """
        return self._sure(lambda: self._finish(cut=cut))

    def _finish(self, *, cut: bool) -> Pieces:
        if self.stop:
            return Pieces()
        # Whoever ended it at its only call cut what the same token began behind it.
        last = self._splitter.finish(cut=cut or self.over)
        if self._matcher is None:
            return self._count(last)
        text = self._matcher.push(last.text)[0] + self._matcher.finish()
        return self._count(Pieces(text, last.reasoning, last.calls))

    def _sure(self, step: Callable[[], _T]) -> _T:
        """What a step of the reading gives."""
        if not self._is_broken:
            try:
                return step()
            except Exception as error:
                self._is_broken = True
                fault = f"{type(error).__name__}: {error!s:.100}"
                log.exception("an answer in the format %s can not be read", self._form)
                raise self._unreadable(fault) from error
        raise self._unreadable("it failed before")

    def _unreadable(self, fault: str) -> Internal:
        return Internal(
            f"the answer can not be read in the format {self._form} ({printable(fault)}), which is "
            "a fault of superfluid: its tokens are kept; report it, and ask again with channels "
            "plain"
        )

    def _text(self, ids: Sequence[int]) -> str:
        """The text that tokens complete, with the control texts of the format in it."""
        shown = self._shown
        if not shown or shown.keys().isdisjoint(ids):
            return self._detokenizer.push(ids)
        parts = []
        for token in ids:
            marker = shown.get(token)
            push = self._detokenizer
            parts.append(push.push((token,)) if marker is None else push.push_bytes(marker))
        return "".join(parts)

    def _count(self, pieces: Pieces) -> Pieces:
        for call in pieces.calls:
            # What could not be sent fails here, where it is this reader's fault alone.
            call.arguments.encode()
        self.calls += len(pieces.calls)
        return pieces


def call_id(name: str, index: int) -> str:
    """The id of a call: the same again for the same answer and place, and no other call's.

    Args:
        name: of the answer.
        index: the call's place in it.
    """
    digest = hashlib.blake2b(f"{name}/{index}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    digits = []
    for _ in range(CALL_ID_LENGTH):
        number, digit = divmod(number, len(_CALL_ID_DIGITS))
        digits.append(_CALL_ID_DIGITS[digit])
    return "".join(digits)


def pieces_map(pieces: Pieces) -> dict[str, Any]:
    """Reasoning and calls as events have them; what is empty is left out."""
    made: dict[str, Any] = {}
    if pieces.reasoning:
        made["reasoning"] = pieces.reasoning
    if pieces.calls:
        made["tool_calls"] = [
            {"index": c.index, "id": c.id, "name": c.name, "arguments": c.arguments}
            for c in pieces.calls
        ]
    return made
