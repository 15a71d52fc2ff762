"""Turns of conversations whose tokens are kept as they are: only what is new is rendered.

A model's template writes something after each answer, before the next message. So new messages are
rendered behind an answer that stands for the last one, and what follows it is added to the context.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bus.context import TokenContext
from bus.errors import Invalid, SuperfluidError
from bus.ids import PackedIds, count_ids, pack_ids, unpack_ids
from head.answers import Answer
from head.sessions import Session
from head.text.tool_messages import is_identifier
from head.text.tool_results import Called, OpenCalls, named

#: What stands for all that was said before; nothing of it is in the result.
_BEFORE: tuple[Mapping[str, Any], ...] = (
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello"},
)
_PLACE = re.compile(r"messages\[([0-9]{1,9})\]")
#: Who may speak after the first answer. A system message begins a conversation: templates put it
#: before all others, where it would be lost; an answer is the model's own.
_RESULTS = frozenset({"tool", "function"})
_ROLES = frozenset({"user"}) | _RESULTS
#: What a result says of its call.
_OF_CALLS = ("tool_call_id", "name")


def messages_behind(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """New messages of a conversation that has an answer, to be rendered behind one.

    Results of tools follow calls that say as much of the answer as templates go by.

    Raises:
        Invalid: one is of a role that can only stand before; names it.
    """
    for place, message in enumerate(messages):
        role = message.get("role")
        if isinstance(role, str) and role not in _ROLES:
            raise Invalid(
                f"messages[{place}].role is {role[:40]!r}; in a session that has begun only user "
                "and tool follow: give all others with the first messages",
                param=f"messages[{place}].role",
            )
    results = list(itertools.takewhile(_is_result, messages))
    if not results:
        return [*_BEFORE, *messages]
    answer = {"role": "assistant", "content": "", "tool_calls": list(map(_call_of, results))}
    return [_BEFORE[0], answer, *messages]


def lack_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a result of a tool does not say which call it answers, and what was called."""
    return any(
        _is_result(message) and not all(message.get(key) for key in _OF_CALLS)
        for message in messages
    )


def with_calls(
    messages: Sequence[Mapping[str, Any]], calls: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Messages whose results of tools say that, as far as it is known.

    Args:
        calls: what the last answer called, by the ids of its calls, in order.
    """
    waiting = OpenCalls(Called(name, ident) for ident, name in calls.items())
    return [
        named(result, waiting, calls) if (result := _readable(message)) is not None else message
        for message in messages
    ]


def newest_in(context: TokenContext, answers: Iterable[Answer]) -> tuple[Answer, int] | None:
    """The first answer of which a context has tokens, and how many; None when it has of none.

    Args:
        answers: of the session, and of those that it was forked from; the newest first.
    """
    for answer in answers:
        begin, end = answer.prompt_tokens, answer.context_tokens
        kept = context.slice(begin, end)
        if kept and kept == pack_ids(answer.tokens[: count_ids(kept)]):
            return answer, count_ids(kept)
    return None


def _readable(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """A result without what is null in it; None for what is no result, or a wrong one."""
    found = {key: value for key, value in message.items() if value is not None}
    if not _is_result(message) or not all(isinstance(found.get(key, ""), str) for key in _OF_CALLS):
        return None
    return found


def _is_result(message: Mapping[str, Any]) -> bool:
    role = message.get("role")
    return isinstance(role, str) and role in _RESULTS


def _call_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """A call that a result may answer. What is wrong with the result is said of itself."""
    name, ident = result.get("name"), result.get("tool_call_id")
    function = {"name": name if is_identifier(name) else "tool", "arguments": {}}
    call: dict[str, Any] = {"type": "function", "function": function}
    return {**call, "id": ident} if is_identifier(ident) else call


def fresh_ids(session: Session, ids: PackedIds, ends: Collection[int]) -> PackedIds:
    """What is to be added to a context: an end of turn that the model has written comes once.

    Args:
        session: of the conversation.
        ids: what follows its last answer, as the template has it.
        ends: ids that end a model's turn.
    """
    length = len(session.context)
    if not length or not ids:
        return ids
    (last,) = unpack_ids(session.context.slice(length - 1, length))
    first = unpack_ids(ids[:4])[0]
    return PackedIds(ids[4:]) if last in ends and first in ends else ids


def renumbered(error: SuperfluidError, behind: int) -> SuperfluidError:
    """An error about messages with their places as the client sent them.

    Args:
        behind: how many stood before them when they were rendered.
    """
    if not behind or not (error.param or "").startswith("messages["):
        return error

    def sent(found: re.Match[str]) -> str:
        return f"messages[{int(found[1]) - behind}]"

    return type(error)(
        _PLACE.sub(sent, error.message),
        param=_PLACE.sub(sent, error.param or "", count=1),
        details=error.details,
        retry_after_ms=error.retry_after_ms,
    )
