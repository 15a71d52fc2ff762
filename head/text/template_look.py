"""What a chat template makes of messages: found by rendering small chats and looking for their
words in the result.

Templates say nowhere what they take. Some want content as a list of parts, some know no system
message or only a first one, some never show tools. What a template would fail on, or drop without
a word, is told before (head/text/fitting.py), so that nothing of a chat is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cached_property
from typing import Any

from head.text.tool_messages import Arguments, Message

Try = Callable[[Mapping[str, Any]], str | None]

#: Words that no template has; letters only, since templates may count, cut and compare.
_USER, _SYSTEM, _SECOND, _ANSWER = "Quarvem", "Zilphotix", "Brundiquel", "Mexovarty"
_NAME, _OTHER_NAME, _RESULT = "wexlorp", "yandirq", "Frimzogat"
_VALUE, _OTHER_VALUE = "Jopkelvu", "Dwimpatch"
#: An identifier as most programs make them, and the only kind that some templates take.
_LONG_ID, _SHORT_ID = "call_0a1b2c3d4e5f", "A1b2C3d4E"


class SystemPlaces(IntEnum):
    """Where a template takes system messages."""

    NOWHERE = 0
    FIRST = 1
    SEVERAL_FIRST = 2
    ANYWHERE = 3


class TemplateLook:
    """Each property renders what it needs, once. Of a template that does not even show what a user
    says nothing can be told: it gets messages as they are.

    Args:
        render: gives the text of a template with variables, None where it fails.
    """

    def __init__(self, render: Try) -> None:
        self._render = render

    @cached_property
    def wants_parts(self) -> bool:
        """Whether content should be a list of parts, not text."""
        if _has(self._raw([_user()]), _USER):
            return False
        return _has(self._raw([in_parts(_user())]), _USER)

    @cached_property
    def system(self) -> SystemPlaces:
        """Where it takes system messages."""
        first, second = _said("system", _SYSTEM), _said("system", _SECOND)
        if not self._tells:
            return SystemPlaces.ANYWHERE
        if not self._shows([first, _user()], _SYSTEM, _USER):
            return SystemPlaces.NOWHERE
        if not self._shows([first, second, _user()], _SYSTEM, _SECOND, _USER):
            return SystemPlaces.FIRST
        later = [first, _user(), _said("assistant", _ANSWER), second, _user()]
        if not self._shows(later, _SYSTEM, _SECOND, _ANSWER):
            return SystemPlaces.SEVERAL_FIRST
        return SystemPlaces.ANYWHERE

    @cached_property
    def no_tools(self) -> list[Any] | None:
        """What stands for no tools: mostly None, and an empty list to those that need a list."""
        return [] if self._text([_user()]) is None and self._text([_user()], []) else None

    @cached_property
    def shows_tools(self) -> bool:
        """Whether tools that are given come up in the prompt."""
        return (
            not self._tells
            or self._shows([_user()], _NAME, tools=_TOOLS)
            or self._shows([_said("system", _SYSTEM), _user()], _NAME, tools=_TOOLS)
        )

    @cached_property
    def shows_calls(self) -> bool:
        """Whether calls of an assistant come up, with their arguments."""
        return not self._tells or any(
            self._shows(_called(ident, _NAME), _NAME, _VALUE, tools=_TOOLS) for ident in _IDS
        )

    @cached_property
    def shows_results(self) -> bool:
        """Whether results of tools come up."""
        return not self._tells or any(
            self._shows(_called(ident, _NAME), _RESULT, tools=_TOOLS) for ident in _IDS
        )

    @cached_property
    def wants_short_ids(self) -> bool:
        """Whether identifiers of calls must be nine letters and digits."""
        return not self._shows(_called(_LONG_ID, _NAME), tools=_TOOLS) and self._shows(
            _called(_SHORT_ID, _NAME), tools=_TOOLS
        )

    @cached_property
    def shows_ids(self) -> bool:
        """Whether identifiers of calls come up; such a template may fail on calls without."""
        return any(self._shows(_called(ident, _NAME), ident[:-1], tools=_TOOLS) for ident in _IDS)

    @cached_property
    def takes_parallel_calls(self) -> bool:
        """Whether one message may have several calls."""
        ident = _SHORT_ID if self.wants_short_ids else _LONG_ID
        several = _called(ident, _NAME, _OTHER_NAME)
        return self._shows(several, _VALUE, _OTHER_VALUE, tools=_TOOLS)

    @cached_property
    def answer_header(self) -> str | None:
        """What it writes before an earlier answer; None where that can not be told."""
        before = self._text([_user()])
        answered = self._text([_user(), _said("assistant", _ANSWER), _user()])
        if before is None or answered is None or _ANSWER not in answered:
            return None
        header = answered[: answered.index(_ANSWER)]
        return header.removeprefix(before) if header.startswith(before) else None

    @cached_property
    def _tells(self) -> bool:
        return self._shows([_user()], _USER)

    def _shows(self, messages: list[Message], *words: str, tools: object = None) -> bool:
        return _has(self._text(messages, tools), *words)

    def _text(self, messages: list[Message], tools: object = None) -> str | None:
        if self.wants_parts:
            messages = [in_parts(message) for message in messages]
        return self._raw(messages, tools)

    def _raw(self, messages: list[Message], tools: object = None) -> str | None:
        return self._render(
            {
                "messages": messages,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": False,
            }
        )


def _has(text: str | None, *words: str) -> bool:
    return text is not None and all(word in text for word in words)


def _said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _user() -> Message:
    return _said("user", _USER)


def in_parts(message: Message) -> Message:
    """The message with its content as a list of parts."""
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _query(value: str) -> Arguments:
    return Arguments({"query": value}, f'{{"query": "{value}"}}')


def _called(ident: str, *names: str) -> list[Message]:
    """A chat with calls and their results, and a question after them."""
    # The last letter tells them apart and keeps the kind.
    idents = [ident[:-1] + "ABCD"[place] for place in range(len(names))]
    calls = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": _query(value)}}
        for one, name, value in zip(idents, names, (_VALUE, _OTHER_VALUE), strict=False)
    ]
    results = [
        {"role": "tool", "tool_call_id": one, "name": name, "content": _RESULT}
        for one, name in zip(idents, names, strict=True)
    ]
    return [
        _user(),
        {"role": "assistant", "content": "", "tool_calls": calls},
        *results,
        _said("assistant", _ANSWER),
        _user(),
    ]


_IDS = (_LONG_ID, _SHORT_ID)
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks things up.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "What to look up."}},
                "required": ["query"],
            },
        },
    }
    for name in (_NAME, _OTHER_NAME)
]
