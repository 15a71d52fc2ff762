"""What a chat asks for beside its messages: tools, whether they must be called, how to read it.

What is found wrong before the messages are rendered is refused at once. The rest is known when the
model's template is: `ChatPlan.begin` then makes the constraint of a tool choice and says how the
answer is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgpack

from bus.errors import ConstraintInvalid, Invalid, TooLarge
from bus.fields import kind_of
from bus.messages.chat import ChatOptions
from bus.messages.sampling import MAX_CONSTRAINT_BYTES, Constraint
from bus.messages.text import Encoded
from head.answer_pieces import SHARED_TOOLS, Channels
from head.answers import Answer
from head.constraint_errors import Told, of_tools
from head.text.channels import FORMATS, ChannelFormat, choose_format
from head.tool_definitions import Tool, check_size, pack_tools, read_tools, tool_named

AUTO, NONE, REQUIRED = "auto", "none", "required"
PLAIN = FORMATS["plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    """A chat's wishes, checked as far as they can be without its model.

    Attributes:
        tools: that the model is told of and may call; none when the choice is `none`.
        required: those of which one has to be called; none when it is the model's choice.
        parallel: whether the answer may have several calls.
        channels: how the answer is to be read, by name; empty goes by the template.
    """

    tools: tuple[Tool, ...] = ()
    required: tuple[Tool, ...] = ()
    parallel: bool = True
    channels: str = ""

    @property
    def packed_tools(self) -> bytes:
        """The tools for a text process."""
        return pack_tools(self.tools)

    def told(self, error: Told) -> Told:
        """An error about an answer's constraint, in words of the request.

        Args:
            error: its sentence, and what the client called its constraint.
        """
        return of_tools(error.message, self.tools, self.required) if self.required else error

    def begin(self, answer: Answer, rendered: Encoded) -> None:
        """Have an answer read as its prompt, which was rendered, says.

        Raises:
            Invalid, TooLarge, ConstraintInvalid: this model can not do it; names the field.
        """
        form = self._format(answer, rendered)
        if self.required:
            constraint = _constraint_of(self._constraint(form, answer, rendered.tail))
            answer.sampling = replace(answer.sampling, constraint=constraint)
        elif answer.sampling.constraint is not None:
            return  # All of the answer is what was asked for.
        if form is PLAIN:
            return
        answer.channels = Channels(
            form=form.name,
            tools=self.tools,
            opened=rendered.tail,
            parallel=self.parallel,
            stops=answer.sampling.stop,
            only_calls=bool(self.required),
        )
        # Stops are for the text alone, which only the head can tell from the rest.
        answer.sampling = replace(answer.sampling, stop=())

    def _format(self, answer: Answer, rendered: Encoded) -> ChannelFormat:
        if self.channels:
            return choose_format(None, (), self.channels)
        form = FORMATS.get(rendered.channels, PLAIN)
        if self.tools and not form.tools:
            raise Invalid(
                f"the chat template of model {answer.model} does not say how calls of tools are "
                "written; leave tools out, or name the format by channels (plain leaves calls in "
                "the text)",
                param="tools",
            )
        return form

    def _constraint(self, form: ChannelFormat, answer: Answer, opened: str) -> dict[str, Any]:
        if form.tag is None or (form.alone and opened):
            raise ConstraintInvalid(
                f"answers of model {answer.model} in the format {form.name} can not be made to "
                "call these tools; use the tool_choice auto, or another format (channels)",
                param="tool_choice",
            )
        spec = form.structural(self.required, REQUIRED, self.parallel, opened)
        if spec is None:
            raise self._can_not_be_held(form)
        return spec

    def _can_not_be_held(self, form: ChannelFormat) -> ConstraintInvalid:
        """The error of the first tool whose arguments a format can not be held to."""
        tool = next(
            tool for tool in self.required if form.structural((tool,), REQUIRED, True) is None
        )
        place = f"tools[{self.tools.index(tool)}].parameters"
        return ConstraintInvalid(
            f"{place}: calls of {tool['name']} in the format {form.name} can not be held to a "
            "schema like this (docs/toolcalls.md says to which); make it simpler, or use the "
            "tool_choice auto",
            param=place,
        )


def _constraint_of(spec: Mapping[str, Any]) -> Constraint:
    source = json.dumps(spec, ensure_ascii=False)
    if (size := len(source.encode())) > MAX_CONSTRAINT_BYTES:
        raise TooLarge(
            f"tools make a constraint of {size} bytes; at most {MAX_CONSTRAINT_BYTES} are "
            "taken: use the tool_choice auto, or fewer and shorter schemas",
            param="tools",
        )
    return Constraint(kind="structural", source=source)


def chat_plan(asked: ChatOptions) -> ChatPlan:
    """The plan of a request.

    Raises:
        Invalid, TooLarge: a key is not what it should be, or two do not go together; names it.
    """
    if asked.channels is not None:
        choose_format(None, (), asked.channels)
        if not asked.channels:
            raise Invalid("channels is empty; leave it out", param="channels")
    tools, required = _chosen(asked.tool_choice, _tools(asked.tools))
    if tools:
        _refuse_constraints(asked)
    return ChatPlan(
        tools=tools,
        required=required,
        parallel=asked.parallel_tool_calls,
        channels=asked.channels or "",
    )


def _tools(given: Any) -> tuple[Tool, ...]:
    """The tools of a request; those that were read before are not looked through again.

    Raises:
        Invalid, TooLarge: they are none, or too many; names the place.
    """
    check_size(given)
    try:
        packed = msgpack.packb(given)
    except (TypeError, ValueError, OverflowError):
        return read_tools(given, measured=True)
    return _read_packed(packed)


@lru_cache(maxsize=SHARED_TOOLS)
def _read_packed(packed: bytes) -> tuple[Tool, ...]:
    return read_tools(msgpack.unpackb(packed, strict_map_key=False), measured=True)


def _chosen(given: Any, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], tuple[Tool, ...]]:
    """The tools that a choice leaves, and those of them of which one has to be called."""
    if given is None:
        return tools, ()
    if isinstance(given, str):
        if given not in (AUTO, NONE, REQUIRED):
            raise Invalid(
                f"tool_choice is {given[:40]!r}; it should be {AUTO}, {NONE}, {REQUIRED} or a map "
                "with the name of a tool",
                param="tool_choice",
            )
        if given == REQUIRED and not tools:
            raise Invalid(
                "tool_choice is required and there are no tools; give some", param="tool_choice"
            )
        if given == NONE:
            return (), ()
        return tools, tools if given == REQUIRED else ()
    name = _named(given)
    tool = tool_named(tools, name)
    if tool is None:
        have = ", ".join(tool["name"] for tool in tools) or "none"
        raise Invalid(
            f"tool_choice names {name[:80]!r}, which is none of the tools ({have:.400})",
            param="tool_choice",
        )
    return tools, (tool,)


def _named(given: Any) -> str:
    if not isinstance(given, Mapping):
        raise Invalid(
            f"tool_choice should be {AUTO}, {NONE}, {REQUIRED} or a map with the name of a tool, "
            f"not {kind_of(given)}",
            param="tool_choice",
        )
    if given.get("type", "function") != "function":
        raise Invalid(
            "tool_choice.type should be function; no others are served", param="tool_choice.type"
        )
    inner, where = (given, "tool_choice")
    if "function" in given:
        inner, where = given["function"], "tool_choice.function"
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        raise Invalid(
            f"{where}.name should be the name of a tool, not {kind_of(name)}",
            param=f"{where}.name",
        )
    return name


def _refuse_constraints(asked: ChatOptions) -> None:
    for param in ("schema", "constraint"):
        if getattr(asked, param) is not None:
            raise Invalid(
                f"{param} and tools can not be joined: under it an answer could not call any; "
                "leave one of them out, or set tool_choice to none",
                param=param,
            )
