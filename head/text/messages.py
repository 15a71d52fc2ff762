"""Chat messages as clients send them, made into one form, or refused by name.

Clients send content as text, as a list of parts, as null, or leave it out; the one form has text.
Roles are a closed set, since some templates make a control token of the role's name. What else is
in a message stays for the template; what is null is left out, since templates tell the two apart
and few mean to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.errors import Invalid, TooLarge
from bus.fields import kind_of
from head.json_values import check_json, check_text
from head.text.tool_messages import Message, check_identifier, read_call, read_calls, shown
from head.text.tool_results import name_results

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_MESSAGES = 4096
#: Parts of a content that are text: of chats, and of what programs for responses send.
_TEXT_PARTS = ("text", "input_text", "output_text")
#: What programs call the reasoning of an answer; templates read the first, one of them the second.
REASONING = ("reasoning_content", "thinking", "reasoning")
#: Read by rules of their own.
_READ = frozenset({"role", "content", "tool_calls", "function_call", *REASONING})


def normalise(messages: object) -> list[Message]:
    """Messages with a known role and text content; the arguments of calls are `Arguments`.

    Raises:
        Invalid: with `param` naming the message and what is wrong with it.
        TooLarge: there are too many.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise Invalid("messages should be a list of messages", param="messages")
    if not messages:
        raise Invalid("messages is empty; send at least one message", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise TooLarge(
            f"messages has {len(messages)} messages; at most {MAX_MESSAGES} are taken",
            param="messages",
        )
    return name_results(
        _message(message, f"messages[{place}]") for place, message in enumerate(messages)
    )


def _message(message: object, where: str) -> Message:
    if not isinstance(message, Mapping) or not all(isinstance(key, str) for key in message):
        raise Invalid(f"{where} should be a map with role and content", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise Invalid(
            f"{where}.role is {shown(role)}; it should be one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    others = {
        key: value for key, value in message.items() if value is not None and key not in _READ
    }
    return {
        "role": "tool" if role == "function" else role,
        "content": _content(message.get("content"), where),
        **_reasoning(message, where),
        **_calls(message, role, where),
        **check_json(_identified(others, where), where),
    }


def _identified(others: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    for key in ("name", "tool_call_id"):
        if key in others:
            check_identifier(others[key], f"{where}.{key}")
    return others


def _reasoning(message: Mapping[str, Any], where: str) -> Message:
    given = [name for name in REASONING if message.get(name) is not None]
    for name in given:
        if not isinstance(message[name], str):
            raise Invalid(
                f"{where}.{name} should be text, not {kind_of(message[name])}",
                param=f"{where}.{name}",
            )
        check_text(message[name], f"{where}.{name}")
    if not given or not message[given[0]]:
        return {}
    text = message[given[0]]
    return {"thinking": text, **{name: message[name] for name in given}, "reasoning_content": text}


def _calls(message: Mapping[str, Any], role: str, where: str) -> Message:
    calls, name = message.get("tool_calls"), "tool_calls"
    if not calls and message.get("function_call") is not None:
        # As calls were sent before there could be several.
        name = "function_call"
        found = [read_call(message[name], f"{where}.{name}")]
    elif calls is None or calls == []:
        return {}
    else:
        found = read_calls(calls, f"{where}.{name}")
    if role != "assistant":
        raise Invalid(
            f"{where}.{name} is in a message of role {role}; only an assistant calls",
            param=f"{where}.{name}",
        )
    return {"tool_calls": found}


def _content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return check_text(content, f"{where}.content")
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        parts = (_part(part, f"{where}.content[{place}]") for place, part in enumerate(content))
        return "\n".join(parts)
    raise Invalid(
        f"{where}.content should be text or a list of text parts, not {shown(content)}",
        param=f"{where}.content",
    )


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return check_text(part, where)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in _TEXT_PARTS or not isinstance(part, Mapping):
        raise Invalid(
            f"{where} has type {shown(kind)}; this model takes parts of type text only",
            param=where,
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise Invalid(f"{where}.text should be text, not {shown(text)}", param=f"{where}.text")
    return check_text(text, f"{where}.text")
