"""Functions that a model calls are run, and what becomes of it is told as text.

Whatever a function gives or raises, there is a result: text that is no whole Unicode is mended,
what JSON can not say is told as Python writes it, and what is too long is told as a text that says
so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.errors import Invalid, SuperfluidError
from bus.messages.tool_calls import ToolCall
from bus.tool_functions import Function

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What became of one call.

    Attributes:
        call: as the model made it.
        content: what the model is told: the function's result as text, or what went wrong.
        error: what the function raised; also for a call of no tool, with arguments that do not
            fit, or with a result that was too long to be told. None when it gave a result.
    """

    call: ToolCall
    content: str
    error: Exception | None = None

    def message(self) -> Message:
        """The message that answers the call."""
        return {
            "role": "tool",
            "tool_call_id": self.call.id,
            "name": self.call.name,
            "content": self.content,
        }


def run_call(call: ToolCall, functions: Mapping[str, Function]) -> ToolResult:
    """Run the function that a call names; whatever it raises becomes the result.

    Args:
        functions: all that may be run, by name.
    """
    function = functions.get(call.name)
    if function is None:
        known = ", ".join(sorted(functions)) or "none"
        error: Exception = Invalid(f"there is no tool {call.name}; there are: {known}")
        return ToolResult(call=call, content=f"error: {error}", error=error)
    try:
        arguments = json.loads(call.arguments)
        content = _whole(_as_text(function(**arguments)))
    except Exception as raised:  # noqa: BLE001 - whatever a tool raises is for the model to read
        return ToolResult(call=call, content=_whole(_told(raised)), error=raised)
    return ToolResult(call=call, content=content)


def without_longest(results: Sequence[ToolResult], error: SuperfluidError) -> list[ToolResult]:
    """Results of which the longest is told as a text that says how long it is.

    Args:
        error: what was said of all of them together.

    Raises:
        SuperfluidError: that error, when none of them can become shorter so.
    """
    longest = max(results, key=lambda result: len(result.content))
    size = len(longest.content.encode())
    content = f"error: the result has {size} bytes, too many for this conversation; ask for less"
    if len(content) >= len(longest.content):
        raise error
    told = ToolResult(call=longest.call, content=content, error=error)
    return [told if result is longest else result for result in results]


def _as_text(result: object) -> str:
    """A function's result as a model reads it: text as it is, the rest as JSON if that can be."""
    if isinstance(result, str):
        return str.__str__(result)
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(result)


def _told(raised: Exception) -> str:
    """What a function raised, also where it can not say that itself."""
    try:
        said = str(raised)
    except Exception:  # noqa: BLE001 - a tool's own class, which may do anything
        said = "(what it says can not be had)"
    return f"error: {type(raised).__name__}: {said}"


def _whole(text: str) -> str:
    """Text that can travel: pairs of half characters are joined, single ones become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
