"""What a finished request gives to the one who asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.api_maps import from_map
from bus.errors import Invalid, WireError
from bus.messages.api import AnswerUsage, Timing, TokenLogprob
from bus.messages.tool_calls import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request's whole output.

    Attributes:
        text: all of its text.
        tokens: its token ids, the truth that the text is made from.
        finish: `stop`, `tool_calls`, `length`, `cancelled` or `expired`.
        usage: tokens of the prompt, found in a cache, made, and made again.
        timing: milliseconds from the head's acceptance, and the rate.
        node: the identity of the node that served the end of it.
        session: names it for `attach`.
        stop: the stop string that its text was cut at; None for every other end.
        logprobs: one for each token, when they were asked for.
        reasoning: of a chat: what the model thought before or between its text.
        tool_calls: of a chat: the calls that it made.
    """

    text: str
    tokens: tuple[int, ...]
    finish: str
    usage: AnswerUsage
    timing: Timing
    node: str
    session: str
    stop: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `sfctl -o json` prints it; what only some answers have where it is there.

        Those are log-probabilities, reasoning and tool calls.
        """
        made = dataclasses.asdict(self, dict_factory=_plain)
        for name in ("logprobs", "reasoning", "tool_calls"):
            if not made[name]:
                del made[name]
        return made

    def message(self) -> dict[str, Any]:
        """The answer as a message of its conversation, with its calls and without its reasoning."""
        made: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            made["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return made


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A map for JSON: a token's bytes as numbers, left out where its text tells them."""
    made = dict(pairs)
    raw = made.pop("raw", None)
    return made if raw is None else {**made, "raw": list(raw)}


def read_answer(
    end: Mapping[str, Any],
    text: str,
    tokens: Sequence[int],
    logprobs: Sequence[TokenLogprob] = (),
    reasoning: str = "",
    tool_calls: Sequence[ToolCall] = (),
) -> Answer:
    """The answer that an `end` reply closes.

    Args:
        end: the reply's body.
        text: all text, with the tail that the end carries.
        tokens: all token ids that came.
        logprobs: all of them that came.
        reasoning: all of it, with the end's.
        tool_calls: all of them, with the end's.

    Raises:
        WireError: the end lacks something, or counts other tokens than came.
    """
    try:
        usage = from_map(AnswerUsage, _part(end, "usage"))
        timing = from_map(Timing, _part(end, "timing"))
        finish, node, session = (_name(end, key) for key in ("finish", "node", "session"))
        stop = _name(end, "stop") if end.get("stop") is not None else None
    except Invalid as error:
        raise WireError(f"the head sent a wrong end: {error.message}") from None
    return Answer(
        text=text,
        tokens=tuple(tokens),
        finish=finish,
        usage=usage,
        timing=timing,
        node=node,
        session=session,
        stop=stop,
        logprobs=tuple(logprobs),
        reasoning=reasoning,
        tool_calls=tuple(tool_calls),
    )


def _part(end: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = end.get(key)
    if not isinstance(part, dict):
        raise Invalid(f"{key} is missing", param=key)
    return part


def _name(end: Mapping[str, Any], key: str) -> str:
    name = end.get(key)
    if not isinstance(name, str):
        raise Invalid(f"{key} is missing", param=key)
    return name
