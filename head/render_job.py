"""What a text process is asked for so that a chat becomes a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from bus.errors import TooLarge
from bus.messages.text import MAX_OPTIONS_BYTES, MAX_TEXT_BYTES, RenderChat
from head.texts import MakeJob


def render_job(
    messages: Sequence[Mapping[str, Any]],
    template: Mapping[str, Any] | None,
    tools: bytes,
    *,
    add_generation_prompt: bool = True,
    continue_final: bool = False,
    after_answer: bool = False,
) -> tuple[MakeJob, int]:
    """What makes the job that renders messages, and how many bytes of text it has.

    Args:
        messages: to be rendered.
        template: further variables of the model's template.
        tools: packed (head/tool_definitions.py).
        add_generation_prompt, continue_final, after_answer: as `RenderChat` has them.

    Raises:
        TooLarge: messages or variables are more than a text process takes.
    """
    packed = _packed("messages", list(messages), MAX_TEXT_BYTES)
    options = _packed("template", template or {}, MAX_OPTIONS_BYTES)

    def make_job(job: int, folder: str) -> object:
        return RenderChat(
            job=job,
            folder=folder,
            messages=packed,
            options=options,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
            after_answer=after_answer,
        )

    return make_job, len(packed) + len(tools)


def _packed(name: str, value: object, limit: int) -> bytes:
    packed: bytes = msgpack.packb(value)
    if len(packed) > limit:
        raise TooLarge(f"{name} has {len(packed)} bytes; at most {limit} are taken", param=name)
    return packed
