"""What text processes make of chats here: a template of one line, and tokens that stand for markup.

The template writes `<role>content.` for each message and `<a>` where the answer begins; `.` ends a
turn, and is a token that models end their own turns with. Each token of an answer stands for a
piece of text, so that what the made-up model draws has reasoning and calls in it, cut anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import msgpack

from bus.ids import pack_ids
from bus.messages import text
from bus.text.detokenizer import Detokenizer
from head.text.channels import FORMATS, ChannelSplitter, Pieces
from tests.harness.memory_text import DIGEST, MARKED_IDS, text_reply

#: Of the token that ends a turn.
END = ord(".")
ENDS = tuple(range(END, MARKED_IDS, 256))
BEGINS_ANSWER = "<a>"
FORM = "hermes"
QUICK_S = 0.001
THINKING = "<think>\n"
#: A message with this is answered by thinking first.
ASKS_TO_THINK = "?"
TOOLS: tuple[Mapping[str, Any], ...] = (
    {"type": "function", "function": {"name": "now", "description": "The time."}},
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
)
_PIECES = (
    b'<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    b"<tool_call>\n",
    b'{"name": "now", "arguments": {}}',
    b"\n</tool_call>",
    b'<tool_call>\n{"name": "weather", "arguments": {"city": "',
    b"Ulm",
    b'"}}\n</tool_call>',
    b"<think>",
    b"</think>",
    b"word ",
    b"\xc3",
    b"\xa9",
    b"<",
    b"</tool_",
)
VOCABULARY = tuple(_PIECES[(token & 0xFF) % len(_PIECES)] for token in range(MARKED_IDS))


@dataclass(frozen=True, slots=True)
class ChatAsk:
    """What a turn brings: new messages, and how its answer is to be read."""

    messages: tuple[Mapping[str, Any], ...]
    has_tools: bool = False
    parallel: bool = True
    is_plain: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """Of the request."""
        body: dict[str, Any] = {"messages": list(self.messages)}
        if self.has_tools:
            body |= {"tools": list(TOOLS), "parallel_tool_calls": self.parallel}
        if self.is_plain:
            body["channels"] = "plain"
        return body

    @property
    def reads_calls(self) -> bool:
        return self.has_tools and not self.is_plain

    def joined(self, context: Sequence[int]) -> list[int]:
        """The tokens by which the messages make a context longer."""
        ids = list(rendered(self.messages, after_answer=bool(context)).encode())
        if context and context[-1] in ENDS and ids[0] == END:
            del ids[0]
        return ids

    def pieces(self, tokens: Sequence[int], *, cut: bool | None = None) -> Pieces:
        """What the first tokens of the answer show.

        Args:
            cut: whether the answer ended before its model was done; None when it goes on.
        """
        return _pieces(self, tuple(token & 0xFF for token in tokens), cut)

    def until_over(self, tokens: list[int], reason: str) -> tuple[list[int], str]:
        """An answer up to the only call that it may have."""
        if self.reads_calls and not self.parallel:
            for count in range(1, len(tokens) + 1):
                if self.pieces(tokens[:count]).calls:
                    return tokens[:count], "tool_calls"
        return tokens, reason


@lru_cache(maxsize=4096)
def _pieces(asked: ChatAsk, tokens: tuple[int, ...], cut: bool | None) -> Pieces:
    shown = Detokenizer(VOCABULARY, ()).push(tokens)
    if asked.is_plain:
        return Pieces(shown)
    splitter = ChannelSplitter(
        FORMATS[FORM],
        TOOLS if asked.has_tools else (),
        call_id=str,
        opened=tail_of(asked.messages),
        parallel=asked.parallel,
    )
    first = splitter.push(shown)
    if cut is None:
        return first
    last = splitter.finish(cut=cut)
    return Pieces(
        first.text + last.text, first.reasoning + last.reasoning, first.calls + last.calls
    )


def draw_ask(rng: Random, name: str, *, poison: str = "") -> ChatAsk:
    """New messages that no other turn has."""
    contents = [f"{name} {rng.randrange(1000)}" for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.3:
        contents[-1] += ASKS_TO_THINK
    contents[-1] += poison
    return ChatAsk(
        tuple(_Message(role="user", content=content) for content in contents),
        has_tools=rng.random() < 0.6,
        parallel=rng.random() < 0.7,
        is_plain=rng.random() < 0.15,
    )


class _Message(dict[str, str]):
    """A message that can be looked up by what it says."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def tail_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the prompt of an answer opens."""
    return THINKING if ASKS_TO_THINK in str(messages[-1]["content"]) else ""


def rendered(messages: Sequence[Mapping[str, Any]], *, after_answer: bool) -> str:
    """A prompt; behind an answer only what follows it."""
    lines = "".join(f"<{message['role']}>{message['content']}." for message in messages)
    return "." * after_answer + lines + BEGINS_ANSWER + tail_of(messages)


def chat_reply(job: object) -> object:
    """The reply of a text process to a job of the decoder."""
    match job:
        case text.Describe():
            return text.Described(
                job=job.job,
                vocabulary=VOCABULARY,
                special=(),
                bos=None,
                eos=ENDS,
                digest=DIGEST,
                has_template=True,
                longest=max(map(len, _PIECES)),
            )
        case text.RenderChat():
            messages = msgpack.unpackb(job.messages)
            last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
            if job.after_answer:
                del messages[: last + 1]
            return text.Encoded(
                job=job.job,
                ids=pack_ids(rendered(messages, after_answer=job.after_answer).encode()),
                digest=DIGEST,
                tail=tail_of(messages),
                channels=FORM,
            )
    return text_reply(job)


def slow_texts(rng: Random, most_s: float) -> Callable[[object], float]:
    """How long jobs of text processes take, each another time; descriptions are there at once."""

    def text_s(job: object) -> float:
        is_quick = isinstance(job, text.Describe) or rng.random() < 0.5
        return QUICK_S if is_quick else rng.uniform(QUICK_S, most_s)

    return text_s
