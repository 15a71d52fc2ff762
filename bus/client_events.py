"""What a request gets at the client: events as they come, and its one end or error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bus.api_maps import from_map
from bus.errors import Invalid, SuperfluidError, WireError, error_from_dict
from bus.messages.api import PlacedEvent, QueuedEvent, TokenEvent

_EVENT_TYPES: Mapping[str, type[TokenEvent] | type[QueuedEvent] | type[PlacedEvent]] = {
    "token": TokenEvent,
    "queued": QueuedEvent,
    "placed": PlacedEvent,
}


@dataclass(frozen=True, slots=True)
class OtherEvent:
    """An event of a type that this version has no class for; `body` is all of it."""

    type: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The request's one end; `body` is all that it carries."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """The request's one error."""

    error: SuperfluidError


StreamEvent = TokenEvent | QueuedEvent | PlacedEvent | OtherEvent
ClientEvent = StreamEvent | Ended | Failed


def read_event(body: Mapping[str, Any]) -> StreamEvent:
    """The event that a reply of kind `event` is.

    Raises:
        WireError: it has no type, or wrong values.
    """
    name = body.get("type")
    if not isinstance(name, str):
        raise WireError("the head sent an event without a type")
    cls = _EVENT_TYPES.get(name)
    if cls is None:
        return OtherEvent(name, body)
    try:
        return from_map(cls, body)
    except Invalid as error:
        raise WireError(f"the head sent a wrong {name} event: {error.message}") from None


def end_tail(body: Mapping[str, Any], offset: int) -> TokenEvent:
    """What only the end of an answer completes, as an event without tokens.

    Args:
        body: the `end` reply.
        offset: the number of tokens before it.

    Raises:
        WireError: it has wrong values.
    """
    pieces = {
        name: value
        for name in ("text", "reasoning", "tool_calls")
        if (value := body.get(name)) is not None
    }
    try:
        return from_map(TokenEvent, {"text": "", **pieces, "offset": offset, "tokens": ()})
    except Invalid as error:
        raise WireError(f"the head sent a wrong end: {error.message}") from None


def error_of(body: Mapping[str, Any]) -> SuperfluidError:
    """The error that a reply of kind `error` carries.

    Raises:
        WireError: it carries none.
    """
    error = body.get("error")
    if not isinstance(error, dict):
        raise WireError("the head sent an error reply without its error")
    return error_from_dict(error)
