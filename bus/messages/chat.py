"""The client API's requests that are made of chat messages (docs/api.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from bus.fields import MaxItems
from bus.ids import ModelName
from bus.messages.api import GenerationOptions, SessionIdField
from bus.messages.parts import Name

MAX_MESSAGES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions(GenerationOptions):
    """What `chat` and `session.chat` share.

    `messages`: maps with `role` and `content`; `template` holds further template variables.
    """

    messages: Annotated[tuple[dict[str, Any], ...], MaxItems(MAX_MESSAGES)]
    template: dict[str, Any] | None = None
    #: Functions that the model may call: `{type: function, function: {...}}`, or the inner maps.
    tools: Any = None
    #: `auto`, `none`, `required`, or a map that names a tool.
    tool_choice: Any = None
    #: Whether an answer may have several calls.
    parallel_tool_calls: bool = True
    #: How reasoning and calls are written in the answer; None goes by the model's template.
    channels: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(ChatOptions):
    """The whole conversation.

    With `continue_final` the answer goes on with its last message, which is the assistant's.
    """

    continue_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChatRequest(ChatOptions):
    """The messages that are new in a session. The model is the session's."""

    session: SessionIdField


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderRequest:
    """A chat whose prompt is wanted; see `ChatOptions` for what its keys are.

    With `continue_final` the prompt ends where the last message does, which is the assistant's.
    """

    model: ModelName
    messages: Annotated[tuple[dict[str, Any], ...], MaxItems(MAX_MESSAGES)]
    template: dict[str, Any] | None = None
    tools: Any = None
    add_generation_prompt: bool = True
    continue_final: bool = False
