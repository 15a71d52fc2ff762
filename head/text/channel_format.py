"""What is known of a format of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.errors import Invalid
from head.text.channel_grammar import Grammar
from head.text.channel_structural import MakeTag, constraint
from head.text.tool_calls import Tools


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
        tag: makes a tag of a constraint under which a tool is called.
        alone: a call that is constrained has to be all of the answer.
    """

    name: str
    markers: tuple[str, ...]
    tools: bool
    reasoning: bool
    grammar: Grammar = field(repr=False, compare=False)
    tag: MakeTag | None = field(default=None, repr=False, compare=False)
    alone: bool = False

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
            None when calls of this format, or of these tools in it, can not be constrained.

        Raises:
            Invalid: there is no tool of that name.
        """
        known = Tools(tools).schemas()
        if choice != "required":
            if choice not in known:
                raise Invalid(
                    f"there is no tool {choice[:60]!r}; name one of tools", param="tool_choice"
                )
            known = {choice: known[choice]}
        if self.tag is None:
            return None
        spec = constraint(known, self.tag, parallel=parallel and not self.alone)
        return {**spec, "at_start": True} if spec is not None and self.alone else spec
