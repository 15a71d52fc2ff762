"""What `Client.render` gives: a chat's prompt, as text and as token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bus.errors import WireError


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt that was not run.

    Attributes:
        text: with its control tokens, as people read it.
        tokens: its ids.
        opened: what its end begins and the answer goes on with, such as "<think>".
        channels: name of the format that the answer is read in.
    """

    text: str
    tokens: tuple[int, ...]
    opened: str = ""
    channels: str = ""


def rendered_prompt(reply: Mapping[str, Any]) -> RenderedPrompt:
    """A head's reply to `render`.

    Raises:
        WireError: it is none.
    """
    text, tokens = reply.get("text"), reply.get("tokens")
    is_whole = isinstance(tokens, list) and all(type(item) is int for item in tokens)
    if not isinstance(text, str) or not isinstance(tokens, list) or not is_whole:
        raise WireError("the head answered render without text and tokens; are versions equal?")
    opened, channels = str(reply.get("opened", "")), str(reply.get("channels", ""))
    return RenderedPrompt(text, tuple(tokens), opened, channels)
