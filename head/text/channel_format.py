"""What is known of a format of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.errors import Invalid
from head.text.channel_grammar import Grammar, Marked, open_end
from head.text.channel_structural import Calls, MakeTag, constraint
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
        calls: what is around such tags.
        thinking: how reasoning begins and ends where the grammar does not say it.
        alone: a call that is constrained has to be all of the answer, and the prompt may open
            nothing before it.
    """

    name: str
    markers: tuple[str, ...]
    tools: bool
    reasoning: bool
    grammar: Grammar = field(repr=False, compare=False)
    tag: MakeTag | None = field(default=None, repr=False, compare=False)
    calls: Calls = field(default=Calls(), repr=False, compare=False)
    thinking: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)
    alone: bool = False

    def structural(
        self,
        tools: Sequence[Mapping[str, Any]],
        choice: str,
        parallel: bool,
        opened: str = "",
    ) -> dict[str, Any] | None:
        """The source of a constraint of kind `structural` under which an answer is calls.

        Its sentences are what a splitter with `only_calls` reads as reasoning, if the prompt opened
        it, and then as one call or more of the chosen tools, with nothing else.

        Args:
            tools: those of the request.
            choice: `required`, or the name of the one that has to be called.
            parallel: whether there may be more than one call.
            opened: the text that the prompt ends with after the last message.

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
        if self.tag is None or (self.alone and opened):
            return None
        thinking = self.grammar.reasoning if isinstance(self.grammar, Marked) else self.thinking
        return constraint(
            known, self.tag, self.calls, parallel=parallel, before=open_end(thinking, opened)
        )
