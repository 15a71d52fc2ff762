"""Which call each result of a tool in chat messages answers, and what was called."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from head.text.tool_messages import Message


@dataclass(frozen=True, slots=True)
class Called:
    """A call as its result goes by it; `id` is empty where it has none."""

    name: str
    id: str = ""


class OpenCalls:
    """Calls of one answer that have no result yet.

    However many there are, a result costs the same.

    Args:
        calls: in order.
    """

    def __init__(self, calls: Iterable[Called] = ()) -> None:
        self._calls = list(calls)
        self._open = set(range(len(self._calls)))
        self._line = deque(range(len(self._calls)))
        self._by_name: dict[str, deque[int]] = {}
        self._by_id: dict[str, list[int]] = {}
        for place, call in enumerate(self._calls):
            self._by_name.setdefault(call.name, deque()).append(place)
            if call.id:
                self._by_id.setdefault(call.id, []).append(place)

    def answer(self, ident: str) -> None:
        """A result named the call that it answers."""
        self._open.difference_update(self._by_id.pop(ident, ()))

    def take_first(self, name: str | None) -> Called | None:
        """The first call that has no result, which then has one; None when there is none.

        Args:
            name: of what was called; None for anything.
        """
        line = self._line if name is None else self._by_name.get(name, deque())
        while line:
            place = line.popleft()
            if place in self._open:
                self._open.remove(place)
                return self._calls[place]
        return None


def name_results(messages: Iterable[Message]) -> list[Message]:
    """Messages whose results of tools say which call they answer, and what was called.

    A result without an identifier answers the first call that has none yet.

    Args:
        messages: in the form of head/text/messages.py.
    """
    found: list[Message] = []
    names: dict[str, str] = {}
    calls = OpenCalls()
    for message in messages:
        if message["role"] == "assistant":
            called = [_called(call) for call in message.get("tool_calls", ())]
            names |= {call.id: call.name for call in called if call.id}
            calls = OpenCalls(called)
        found.append(named(message, calls, names) if message["role"] == "tool" else message)
    return found


def named(result: Mapping[str, Any], calls: OpenCalls, names: Mapping[str, str]) -> dict[str, Any]:
    """A result with what is known of its call: the identifier and the name.

    Args:
        result: whose `tool_call_id` and `name` are text, or left out.
        calls: of the answer before it that have no result yet.
        names: of what was called, by the identifiers of all calls so far.
    """
    if "tool_call_id" not in result:
        call = calls.take_first(result.get("name"))
        if call is None:
            return dict(result)
        known = {"tool_call_id": call.id} if call.id else {}
        return {**result, **known, "name": call.name}
    ident = result["tool_call_id"]
    calls.answer(ident)
    return {"name": names[ident], **result} if ident in names else dict(result)


def _called(call: Message) -> Called:
    return Called(call["function"]["name"], call.get("id", ""))
