"""The formats of answers, by name, and which of them a model's template is written for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.errors import Invalid
from head.text.channel_calls import tagged_call
from head.text.channel_grammar import Grammar, Marked, plain

_THINK = (("<think>", "</think>"),)


@dataclass(frozen=True, slots=True)
class ChannelFormat:
    """How a family of models marks reasoning and tool calls.

    Attributes:
        name: what `channels` of a request calls it.
        markers: texts that a splitter has to see, also where the model writes them as control
            tokens.
        tools: whether it has calls.
        reasoning: whether it has reasoning.
        grammar: reads an answer.
    """

    name: str
    markers: tuple[str, ...]
    tools: bool
    reasoning: bool
    grammar: Grammar = field(repr=False, compare=False)

    def structural(
        self,
        tools: Sequence[Mapping[str, Any]],
        choice: str,
        parallel: bool,
    ) -> dict[str, Any] | None:
        """The source of a constraint of kind `structural` under which an answer calls tools.

        Args:
            tools: those of the request.
            choice: `required`, or the name of the one that has to be called.
            parallel: whether more than one call may follow.

        Returns:
            None when calls of this format can not be told from text by a constraint.
        """
        return None


FORMATS: Mapping[str, ChannelFormat] = {
    form.name: form
    for form in (
        ChannelFormat("plain", (), False, False, plain),
        ChannelFormat("think", ("<think>", "</think>"), False, True, Marked(reasoning=_THINK)),
        ChannelFormat(
            "hermes",
            ("<think>", "</think>", "<tool_call>", "</tool_call>"),
            True,
            True,
            Marked(reasoning=_THINK, calls={"<tool_call>": tagged_call("</tool_call>")}),
        ),
    )
}


def choose_format(
    template: str | None, special_texts: Iterable[str], override: str = ""
) -> ChannelFormat:
    """The format that a model writes its answers in.

    Args:
        template: text of its chat template.
        special_texts: its control tokens.
        override: name of a format, which then is it.

    Returns:
        `plain` when nothing is known of it.

    Raises:
        Invalid: there is no format of that name.
    """
    if override:
        if override not in FORMATS:
            raise Invalid(
                f"there is no format {override[:40]!r}; use one of {', '.join(FORMATS)}",
                param="channels",
            )
        return FORMATS[override]
    text = template or ""
    if "<tool_call>" in text and '"name"' in text:
        return FORMATS["hermes"]
    return FORMATS["think" if "</think>" in text else "plain"]
