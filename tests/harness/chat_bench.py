"""The head's core with the real text jobs of a toy model: its tokens are bytes and ChatML's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from bus.errors import SuperfluidError
from bus.ids import unpack_ids
from bus.messages.api import MARK, encode_body
from bus.messages.link import AppendContent, GenerateReq
from bus.messages.text import Description, Encoded, TextFailed
from head.effects import Persist
from head.rows import StoredState
from head.text.jobs import TextJobs
from tests.harness.head_bench import CLIENT, TOY, Bench, run
from tests.harness.memory_disk import Disk
from tests.harness.models import toy_model_folder

START, END = 257, 258
CHATML = """{%- if tools %}<|im_start|>system
Tools:
{% for tool in tools %}{{ tool.function | tojson }}
{% endfor %}
Call them so: <tool_call>{"name": NAME, "arguments": MAP}</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
THINKING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
WEATHER = {
    "name": "weather",
    "description": "Das Wetter, \u5929\u6c14.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
NOW = {"name": "now", "description": "The time."}
HELLO = {"role": "user", "content": "Hi"}


def chat_folder(folder: Path, template: str = CHATML) -> Path:
    """The toy model's tokenizer with a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "superfluid.json"):
        if (source := toy_model_folder().path / name).exists():
            shutil.copy(source, folder / name)
    (folder / "chat_template.jinja").write_text(template)
    return folder


class ChatBench(Bench):
    """Its model's folder is real; one node has room for what is said."""

    def __init__(
        self, folder: Path, stored: StoredState | None = None, *, knows_model: bool = True
    ) -> None:
        self._folder = str(folder)
        self._handlers = cast("dict[type, Callable[[Any], object]]", TextJobs().handlers())
        self.jobs: list[Any] = []
        #: UTF-8 bytes of texts that had to be encoded.
        self.fresh_bytes = 0
        super().__init__(stored=stored)
        self.core.models_found({}, 0.0)
        if knows_model:
            self.learn_model()
        self.node(1, window=100_000)
        self._number = 0

    def learn_model(self) -> None:
        """The head finds its folder of the model, and reads it."""
        self.core.models_found({TOY: self._folder}, self.now)
        self.settle()

    def restarted(self, *, knows_model: bool = True) -> ChatBench:
        """The head after it ended and began again with what it had kept."""
        disk = Disk()
        disk.boot = self.core.boot
        disk.commit(Persist(lsn=1, rows=tuple(self.rows)))
        return ChatBench(Path(self._folder), disk.start(), knows_model=knows_model)

    def text_reply(self, job: Any) -> object:
        self.jobs.append(job)
        if job.folder != self._folder:
            return super().text_reply(job)
        try:
            reply = self._handlers[type(job)](job)
        except SuperfluidError as error:
            return TextFailed(
                job=job.job, code=error.code, message=error.message, param=error.param or ""
            )
        if isinstance(reply, Description):
            reply = reply.unpacked()
        if isinstance(reply, Encoded):
            self.fresh_bytes += reply.fresh_bytes
        return self.with_digest(reply)

    def send(self, op: str = "chat", **body: Any) -> bytes:
        """Send a request; gives its id."""
        self._number += 1
        request = b"q%d" % self._number
        if op == "chat":
            body = {"model": TOY, "messages": [HELLO], **body}
        frames = [MARK, encode_body({"op": op, "id": request, **body})]
        self.core.client_request(CLIENT, frames, self.now)
        self.settle()
        return request

    def chat(self, **body: Any) -> GenerateReq:
        """What the node is asked for a chat."""
        before = len(self.on(1, GenerateReq))
        self.send(**{"max_new": 1000, **body})
        asked = self.on(1, GenerateReq)[before:]
        if not asked:
            raise AssertionError(f"nothing was asked of the node: {self.replies[-1]}")
        request: GenerateReq = asked[-1]
        return request

    def call(self, op: str, **body: Any) -> dict[str, Any]:
        """The last reply to a request."""
        request = self.send(op, **body)
        return next(r for r in reversed(self.replies) if r["id"] == request)

    def refused(self, op: str = "chat", **body: Any) -> dict[str, Any]:
        """The error of a request."""
        reply = self.call(op, **body)
        assert reply["kind"] == "error", reply
        error: dict[str, Any] = reply["error"]
        return error

    def say(
        self, request: GenerateReq, first: int, text: str | bytes | list[int], finish: str = ""
    ) -> int:
        """The node makes tokens; gives the offset after them."""
        ids = list(text.encode() if isinstance(text, str) else text)
        self.hear(1, run(request, first, *ids, finish=finish))
        return first + len(ids)

    def answer(self, request: GenerateReq, text: str, finish: str = "eos") -> None:
        """A whole answer, with the token that ends it."""
        ids = [*text.encode(), *([END] if finish == "eos" else [])]
        self.hear(1, run(request, 0, *ids, finish=finish))

    def attach(self, session: str, offset: int) -> bytes:
        return self.send("attach", session=session, offset=offset)

    def pieces(self, request: bytes = b"q1") -> dict[str, Any]:
        """All that a request got, joined, and how it ended."""
        mine = [r for r in self.replies if r["id"] == request]
        told = [r for r in mine if r.get("type") == "token" or r["kind"] == "end"]
        found: dict[str, Any] = {
            "text": "".join(r["text"] for r in told),
            "reasoning": "".join(r.get("reasoning", "") for r in told),
            "calls": [call for r in told for call in r.get("tool_calls", ())],
        }
        ends = [r["finish"] for r in mine if r["kind"] == "end"]
        return {**found, "finish": ends[0] if ends else None}

    def appended(self) -> str:
        """The context that the node was given, as people read it."""
        ids: list[int] = []
        for message in self.on(1, AppendContent):
            ids = [*ids[: message.base_tokens], *unpack_ids(message.ids)]
        return shown(ids)


def shown(ids: list[int]) -> str:
    """Ids of the toy model as text, control tokens too."""
    names = {256: b"<|endoftext|>", START: b"<|im_start|>", END: b"<|im_end|>", 259: b"<|pad|>"}
    return b"".join(names[i] if i in names else bytes([i]) for i in ids).decode()
