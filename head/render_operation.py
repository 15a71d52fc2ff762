"""The operation `render`: the prompt that a chat would have, as text and as ids; nothing runs."""

from __future__ import annotations

from typing import Any

from bus.api_maps import from_map
from bus.errors import Internal, SuperfluidError
from bus.ids import unpack_ids
from bus.messages.chat import RenderRequest
from bus.messages.text import Encoded
from head.operation import ApiRequest, Core
from head.render_job import render_job
from head.tool_definitions import pack_tools, read_tools


class RenderOperation:
    """Owned by the API; works on the head's core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def render(self, request: ApiRequest, now: float) -> None:
        """Answer with a chat's prompt."""
        asked = from_map(RenderRequest, request.body)
        self._core.media.check_chat(asked.model, asked.messages)
        make_job, size_bytes = render_job(
            asked.messages,
            asked.template,
            pack_tools(read_tools(asked.tools)),
            add_generation_prompt=asked.add_generation_prompt,
            continue_final=asked.continue_final,
        )

        def then(reply: object, now: float) -> None:
            if isinstance(reply, Encoded):
                self._core.outbox.reply(request.end(_shown(reply)))
                return
            error = reply if isinstance(reply, SuperfluidError) else Internal("no prompt")
            self._core.fail_request(request.client, request.id, error)

        self._core.texts.submit(
            asked.model,
            make_job,
            then,
            client=request.client,
            size_bytes=size_bytes,
            until_gone=True,
        )


def _shown(reply: Encoded) -> dict[str, Any]:
    return {
        "text": reply.text,
        "tokens": list(unpack_ids(reply.ids)),
        "opened": reply.tail,
        "channels": reply.channels,
    }
