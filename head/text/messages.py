"""Chat messages as clients send them, made into what every template can take, or refused.

Clients send content as text, as a list of parts, as null, or leave it out; templates mostly want
text. Roles are a closed set, since some templates make a control token of the role's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.errors import Invalid
from bus.fields import kind_of

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

Message = dict[str, Any]


def normalise(messages: object) -> list[Message]:
    """Messages with a known role and text content; everything else in them stays.

    Raises:
        Invalid: with `param` naming the message and what is wrong with it.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise Invalid("messages should be a list of messages", param="messages")
    if not messages:
        raise Invalid("messages is empty; send at least one message", param="messages")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _message(message: object, where: str) -> Message:
    if not isinstance(message, Mapping) or not all(isinstance(key, str) for key in message):
        raise Invalid(f"{where} should be a map with role and content", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise Invalid(
            f"{where}.role is {_shown(role)}; it should be one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    return {**message, "role": role, "content": _content(message.get("content"), where)}


def _content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        parts = (_part(part, f"{where}.content[{place}]") for place, part in enumerate(content))
        return "\n".join(parts)
    raise Invalid(
        f"{where}.content should be text or a list of text parts, not {_shown(content)}",
        param=f"{where}.content",
    )


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(part, Mapping):
        raise Invalid(
            f"{where} has type {_shown(kind)}; this model takes parts of type text only",
            param=where,
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise Invalid(f"{where}.text should be text, not {_shown(text)}", param=f"{where}.text")
    return text


def _shown(value: object) -> str:
    """A wrong value in a message: text quoted and cut, others by their kind."""
    if value is None:
        return "missing"
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "...")
    return kind_of(value)
