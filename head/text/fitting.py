"""Messages made into what a model's template takes, so that nothing of a chat is lost.

A template that knows one system message only gets one; one that knows none finds its text in the
first message of the user. Where a template shows no tools, no calls or no results of them, they are
written as text in the form that most models know: JSON in `<tool_call>` and `<tool_response>`.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from head.text.template_look import SystemPlaces, TemplateLook, in_parts
from head.text.tool_messages import Message
from head.text.tool_results import name_results

#: How calls are written where the template has no form for them.
CALL_FORM = (
    "To call one, write its name and arguments as JSON in these tags, and then wait for its "
    'result:\n<tool_call>\n{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}\n</tool_call>'
)
_BETWEEN = "\n\n"
_SHORT_ID_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHORT_ID_LENGTH = 9


def fit(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    look: TemplateLook,
    *,
    knows_developer: bool,
) -> list[Message]:
    """The messages as a template takes them.

    Args:
        messages: in the form of head/text/messages.py.
        tools: in the form of head/tool_definitions.py.
        look: what the template makes of messages.
        knows_developer: whether it has a place for the role.
    """
    found = list(messages)
    if not knows_developer:
        found = [_as_system(message) for message in found]
    if tools and not look.shows_tools:
        text = _tools_text(tools, own_form=look.shows_calls)
        found = [{"role": "system", "content": text}, *found]
    if any(message.get("tool_calls") for message in found):
        found = list(_fit_calls(found, look))
    if any(message["role"] == "tool" for message in found) and not look.shows_results:
        found = list(_results_as_text(found))
    found = _fit_system(found, look)
    return [in_parts(message) for message in found] if look.wants_parts else found


# --- system messages --------------------------------------------------------------------------


def _as_system(message: Message) -> Message:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _fit_system(messages: list[Message], look: TemplateLook) -> list[Message]:
    places = [place for place, message in enumerate(messages) if message["role"] == "system"]
    if not places:
        return messages
    at_start = places == list(range(len(places)))
    if look.system >= _needed(len(places), at_start):
        return messages
    text = _BETWEEN.join(messages[place]["content"] for place in places)
    others = [message for message in messages if message["role"] != "system"]
    if look.system > SystemPlaces.NOWHERE:
        return [{**messages[places[0]], "content": text}, *others]
    return _into_user(text, others)


def _needed(count: int, at_start: bool) -> SystemPlaces:
    if not at_start:
        return SystemPlaces.ANYWHERE
    return SystemPlaces.FIRST if count == 1 else SystemPlaces.SEVERAL_FIRST


def _into_user(text: str, messages: list[Message]) -> list[Message]:
    for place, message in enumerate(messages):
        if message["role"] == "user":
            content = _BETWEEN.join(part for part in (text, message["content"]) if part)
            return [*messages[:place], {**message, "content": content}, *messages[place + 1 :]]
    return [{"role": "user", "content": text}, *messages]


# --- tools ------------------------------------------------------------------------------------


def _tools_text(tools: Iterable[Mapping[str, Any]], *, own_form: bool) -> str:
    """Tools for a model whose template shows none.

    Args:
        own_form: whether the template has a form for calls, which the model then knows.
    """
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = (
        "You can call functions. These are their names, what they do, and JSON schemas of their "
        f"parameters, one function a line:\n<tools>\n{lines}\n</tools>"
    )
    return text if own_form else f"{text}\n{CALL_FORM}"


def _fit_calls(messages: Iterable[Message], look: TemplateLook) -> Iterator[Message]:
    if not look.shows_calls:
        yield from map(_calls_as_text, messages)
        return
    messages = list(messages)
    if look.wants_short_ids or (_lacks_ids(messages) and look.shows_ids):
        messages = _identified(messages)
    if not look.takes_parallel_calls:
        messages = _one_by_one(messages)
    for message in messages:
        yield _with_short_ids(message) if look.wants_short_ids else message


def _calls_as_text(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [
        '<tool_call>\n{"name": '
        f"{json.dumps(call['function']['name'], ensure_ascii=False)}, "
        f'"arguments": {call["function"]["arguments"]}}}\n</tool_call>'
        for call in calls
    ]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, [message["content"], *texts]))}


def _results_as_text(messages: Iterable[Message]) -> Iterator[Message]:
    """Results that follow each other become one message of the user."""
    texts: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            texts.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if texts:
            yield {"role": "user", "content": "\n".join(texts)}
            texts = []
        yield message
    if texts:
        yield {"role": "user", "content": "\n".join(texts)}


def _one_by_one(messages: list[Message]) -> Iterator[Message]:
    """Each call in a message of its own, with its result after it."""
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            yield message
            continue
        results = []
        while place < len(messages) and messages[place]["role"] == "tool":
            results.append(messages[place])
            place += 1
        yield from _pairs(message, results)


def _pairs(message: Message, results: list[Message]) -> Iterator[Message]:
    """What else is in the message is said once, with its first call."""
    lines: dict[Any, deque[int]] = {}
    for place, result in enumerate(results):
        lines.setdefault(result.get("tool_call_id"), deque()).append(place)
    paired = set()
    rest = message
    for call in message["tool_calls"]:
        yield {**rest, "tool_calls": [call]}
        rest = {"role": "assistant", "content": ""}
        if line := lines.get(call.get("id")):
            place = line.popleft()
            paired.add(place)
            yield results[place]
    yield from (result for place, result in enumerate(results) if place not in paired)


def _lacks_ids(messages: Iterable[Message]) -> bool:
    """Whether there is a call without an identifier."""
    return any("id" not in call for message in messages for call in message.get("tool_calls") or ())


def _identified(messages: Iterable[Message]) -> list[Message]:
    """Calls that have no identifier get one, and so do their results."""

    def calls(place: int, message: Message) -> Message:
        found = [
            {"id": f"{place}.{number}", **call} for number, call in enumerate(message["tool_calls"])
        ]
        return {**message, "tool_calls": found}

    return name_results(
        calls(place, message) if message.get("tool_calls") else message
        for place, message in enumerate(messages)
    )


def _with_short_ids(message: Message) -> Message:
    """Identifiers of the only kind that some templates take, equal for equal ones."""
    if message.get("tool_calls"):
        calls = [{**call, "id": _short(call["id"])} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _short(message["tool_call_id"])}
    return message


def _short(ident: str) -> str:
    if len(ident) == _SHORT_ID_LENGTH and all(letter in _SHORT_ID_LETTERS for letter in ident):
        return ident
    number = int.from_bytes(hashlib.blake2b(ident.encode(), digest_size=8).digest(), "big")
    letters = []
    for _ in range(_SHORT_ID_LENGTH):
        number, place = divmod(number, len(_SHORT_ID_LETTERS))
        letters.append(_SHORT_ID_LETTERS[place])
    return "".join(letters)
