"""Answers that are made of messages with headers: gpt-oss' Harmony and Kimi K3's elements."""

from __future__ import annotations

import re

from head.text.channel_calls import object_text
from head.text.channel_grammar import Outcome, Section, Turn, attempt, marks_of, open_end
from head.text.channel_json import json_value
from head.text.channel_output import Channel
from head.text.channel_reader import Malformed, Reader, Steps
from head.text.channel_xml import kimi3_call

# --- Harmony -------------------------------------------------------------------------------------

_TO = "to="
_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_END, _RETURN, _CALL = "<|end|>", "<|return|>", "<|call|>"
_HEADER = re.compile(r"[A-Za-z0-9_.:/= -]*")
_HEADER_PARTS = (_MESSAGE, _CHANNEL, "<|constrain|>", _START)
_RECIPIENT = re.compile(r"(?<!\S)to=(\S+)")
#: What ends a message; `<|call|>` ends calls only, since reasoning may tell of it.
_ENDS = (_END, _RETURN, _START)
_MAX_HEADER = 512


def harmony(turn: Turn, opened: str) -> Steps[None]:
    """gpt-oss: messages `to=functions.f<|channel|>commentary<|message|>...<|end|>`."""
    turn.end_reasoning()
    turn.reader.feed(opened)
    while (yield from turn.reader.more()):
        message = _Message()
        unsure = turn.reader.sure - 1
        outcome = yield from attempt(turn, "", message.read(turn), unsure=unsure)
        if outcome is Outcome.CUT:
            return
        if outcome is Outcome.TEXT:
            # Without a header it is a message that the prompt began.
            yield from _body(turn, turn.out.text, keep=message.marked)
        elif message.channel is not None:
            yield from _body(turn, message.channel)


class _Message:
    """A message's header, and all of a message that is a call."""

    def __init__(self) -> None:
        #: Where the message's text goes; none when it was a call.
        self.channel: Channel | None = None
        #: A control text of a header was read.
        self.marked = False

    def read(self, turn: Turn) -> Steps[None]:
        """Read it.

        Raises:
            Malformed: it is no header, or a call that is none.
        """
        channel, recipient = yield from self._header(turn.reader)
        name = recipient.removeprefix("functions.")
        if name in turn.tools:
            yield from _harmony_call(turn, name)
        elif recipient.startswith("functions.") or (recipient and recipient != "assistant"):
            raise Malformed
        else:
            self.channel = turn.out.reasoning if channel == "analysis" else turn.out.text

    def _header(self, reader: Reader) -> Steps[tuple[str, str]]:
        """Channel and recipient of a message, from its header."""
        channel = recipient = ""
        length = 0
        yield from reader.skip(" ")
        marker = yield from reader.one_of(marks_of(_TO, *_HEADER_PARTS))
        self.marked = marker != _TO
        while marker != _MESSAGE:
            text = yield from reader.run(_HEADER)
            length += len(text)
            if length > _MAX_HEADER:
                raise Malformed
            if marker == _START:
                channel = recipient = ""
            if marker == _CHANNEL:
                channel = text.split(" ", 1)[0]
            found = _RECIPIENT.search(_TO + text if marker == _TO else text)
            recipient = found[1] if found else recipient
            marker = yield from reader.one_of(marks_of(*_HEADER_PARTS))
            self.marked = True
        return channel, recipient


def _harmony_call(turn: Turn, name: str) -> Steps[None]:
    reader = turn.reader
    yield from reader.skip()
    ends = marks_of(_CALL, _END, _RETURN)
    if (yield from reader.over()) or (yield from reader.need()) == "<":
        arguments = "{}"
    else:
        arguments = object_text((yield from json_value(reader)))
        yield from reader.skip()
    if not (yield from reader.over()):
        yield from reader.one_of(ends)
    turn.call(name, arguments)


def _body(turn: Turn, channel: Channel, *, keep: bool = False) -> Steps[None]:
    """The text of a message, up to its end or the next one's beginning.

    Args:
        keep: its end is text, too.
    """
    marker = yield from turn.reader.until(marks_of(*_ENDS), channel.add)
    if marker == _START:
        turn.reader.back(_START)
    elif turn.reader.dropped:
        channel.markup()
    elif keep:
        channel.add(marker)


# --- Kimi K3 -------------------------------------------------------------------------------------

_OPEN, _CLOSE = "<|open|>", "<|close|>"
KIMI3_THINKING = (("<|open|>think<|sep|>", "<|close|>think<|sep|>"),)
_ELEMENT = re.compile(r"[^<>\n]*")
_TOOLS = Section("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", '<|open|>call tool="', kimi3_call)


def kimi3(turn: Turn, opened: str) -> Steps[None]:
    """Kimi K3: elements `<|open|>think<|sep|>...<|close|>think<|sep|>`."""
    end = open_end(KIMI3_THINKING, opened)
    if turn.only_calls and end:
        # What looks like an element in it is none.
        yield from turn.reader.until(marks_of(end), turn.out.reasoning.add)
        turn.out.reasoning.markup()
    else:
        turn.reader.feed(opened)
    turn.end_reasoning()
    channel = turn.out.text
    while True:
        marker = yield from turn.reader.until(marks_of(_OPEN, _CLOSE), channel.add)
        if not marker:
            if turn.reader.dropped:
                channel.markup()
            return
        element = _Element(marker, channel)
        yield from attempt(turn, marker, element.read(turn), channel)
        channel = element.channel


class _Element:
    """The beginning or end of an element, or all of the calls."""

    def __init__(self, marker: str, channel: Channel) -> None:
        self._marker = marker
        #: Where the text behind it goes.
        self.channel = channel

    def read(self, turn: Turn) -> Steps[None]:
        """Read it.

        Raises:
            Malformed: it is no element that is known.
        """
        reader = turn.reader
        name = (yield from reader.word(_ELEMENT)).split(" ", 1)[0]
        if name in ("message", "response", "think"):
            yield from reader.one_of(marks_of("<|sep|>"))
            opens = name == "think" and self._marker == _OPEN
            self.channel = turn.out.reasoning if opens else turn.out.text
        elif name == "tools" and self._marker == _OPEN and turn.tools:
            yield from reader.one_of(marks_of("<|sep|>"))
            yield from _TOOLS.read_all(turn)
            self.channel = turn.out.text
        else:
            raise Malformed
