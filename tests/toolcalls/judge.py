"""Splits the outputs of the wheel, whole and in pieces, and says which come out as they have to."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from head.text.channels import FORMATS, ChannelFormat, ChannelSplitter, ToolCall
from tests.toolcalls.wheel import Output

#: The format of each family, or of some of its models.
_FAMILIES = {
    "gemma4": "gemma4",
    "glm": "glm",
    "gpt-oss": "harmony",
    "kimi": "kimi-k2",
    "moonshotai/Kimi-K3": "kimi-k3",
    "llama": "llama3",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama4",
    "mistral": "mistral",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-list",
    "qwen3-hermes": "hermes",
    "qwen3-xml": "qwen3-coder",
    "deepseek": "deepseek-dsml",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.1": "deepseek",
}


@dataclass(frozen=True, slots=True)
class Split:
    """What a splitter gave of an output, joined."""

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]


def format_of(output: Output) -> ChannelFormat:
    """The format that its model writes."""
    return FORMATS[_FAMILIES.get(output.model) or _FAMILIES[output.family]]


def split(output: Output, pieces: Iterable[str]) -> Split:
    """Split an output that comes in pieces."""
    splitter = ChannelSplitter(
        format_of(output), output.tools, call_id="call-{}".format, opened=output.prompt_end
    )
    given = [splitter.push(piece) for piece in pieces]
    given.append(splitter.finish(cut=output.cut))
    return Split(
        "".join(each.text for each in given),
        "".join(each.reasoning for each in given),
        tuple(call for each in given for call in each.calls),
    )


def in_pieces(text: str, rng: random.Random) -> list[str]:
    """A text in random pieces, in one of several ways."""
    longest = rng.choice((1, 2, 3, 8, 30, 200))
    pieces, at = [], 0
    while at < len(text):
        size = rng.randint(1, longest)
        pieces.append(text[at : at + size])
        at += size
    return pieces


def miss(output: Output, got: Split) -> str:
    """What is not as it has to be; empty when nothing is.

    White space at the ends of text and reasoning does not count, as in the wheel's own policy.
    """
    if output.calls is None:
        return _miss_of_broken(output, got)
    if got.text.strip() != output.text.strip():
        return f"text {got.text!r}, not {output.text!r}"
    if got.reasoning.strip() != output.reasoning.strip():
        return f"reasoning {got.reasoning!r}, not {output.reasoning!r}"
    names, wanted = [call.name for call in got.calls], [name for name, _ in output.calls]
    if names != wanted:
        return f"calls of {names}, not {wanted}"
    for call, (_, arguments) in zip(got.calls, output.calls, strict=True):
        if _same(json.loads(call.arguments)) != _same(arguments):
            return f"arguments {call.arguments}, not {json.dumps(arguments, ensure_ascii=False)}"
    return ""


def exact(output: Output, got: Split) -> bool:
    """Whether white space is as it has to be, too."""
    return output.calls is None or (got.text, got.reasoning) == (output.text, output.reasoning)


def _miss_of_broken(output: Output, got: Split) -> str:
    if got.calls:
        return f"calls of {[call.name for call in got.calls]}, not none"
    passed = got.text.strip() == output.raw.strip()
    if "no_tool_calls" in output.accepted or (passed and "content_passthrough" in output.accepted):
        return ""
    return f"text {got.text!r}; accepted: {sorted(output.accepted)}"


def _same(value: Any) -> Any:
    """A value that equals another only when both are the same JSON: `true` is not `1`."""
    if isinstance(value, dict):
        return {key: _same(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_same(part) for part in value]
    return (isinstance(value, bool), value)
