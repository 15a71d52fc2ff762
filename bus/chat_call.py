"""A request for an answer to messages, and the loop that runs the tools which the answer calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.answer import Answer
from bus.call import Call, Pump
from bus.errors import Invalid
from bus.ids import RequestId
from bus.messages.tool_calls import ToolCall
from bus.tool_functions import Function

Message = dict[str, Any]
#: How often a model is given results before it has to answer.
MAX_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What became of one call.

    Attributes:
        call: as the model made it.
        content: what the model is told: the function's result as text, or what went wrong.
        error: what the function raised; also for a call of no tool, or with arguments that do not
            fit. None when it gave a result.
    """

    call: ToolCall
    content: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """A conversation after its tools were run.

    Attributes:
        answer: the last one. It has calls when the rounds were used up, or when it calls a tool
            that is no Python function: run those yourself and go on with `messages`.
        messages: all of them, from those that were sent to the last answer.
        results: of every call that was run, in order.
        rounds: how often the model was given results.
    """

    answer: Answer
    messages: tuple[Message, ...]
    results: tuple[ToolResult, ...] = ()
    rounds: int = 0

    @property
    def text(self) -> str:
        """The last answer's text."""
        return self.answer.text


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAsk:
    """What a chat call needs to go on by itself.

    Attributes:
        messages: that were sent.
        functions: that may be run, by name.
        names: of all tools that the model was told of.
        follow: asks again, from the answer, the messages that follow it, and the round's number.
    """

    messages: Sequence[Message]
    follow: Callable[[Answer, Sequence[Message], int], ChatCall]
    functions: Mapping[str, Function] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


class ChatCall(Call):
    """One `chat` that was sent. Used by its client's thread."""

    def __init__(self, client: Pump, request: RequestId, ask: ChatAsk) -> None:
        super().__init__(client, request)
        self.ask = ask

    def run_tools(
        self, max_rounds: int = MAX_ROUNDS, on_result: Callable[[ToolResult], None] | None = None
    ) -> ToolRun:
        """Wait for the answer, run the functions that it calls, and ask again with their results.

        What a function raises is told to the model as text, and kept in `results`. A name that is
        no tool's is never called. A tool choice counts for the first answer only.

        Args:
            max_rounds: how often the model may be given results, from 0 on.
            on_result: told of each result as it is there.

        Raises:
            Invalid: max_rounds is below 0.
            SuperfluidError: how a request failed.
        """
        if max_rounds < 0:
            raise Invalid(f"max_rounds is {max_rounds}; it should be 0 or more", param="max_rounds")
        call: ChatCall = self
        messages = list(self.ask.messages)
        results: list[ToolResult] = []
        for rounds in range(max_rounds + 1):
            answer = call.result()
            messages.append(answer.message())
            is_last = rounds == max_rounds or not self._runs(answer)
            if is_last:
                break
            fresh = []
            for made in answer.tool_calls:
                fresh.append(run_call(made, self.ask.functions))
                if on_result is not None:
                    on_result(fresh[-1])
            results += fresh
            told = [tool_message(each.call, each.content) for each in fresh]
            messages += told
            call = call.ask.follow(answer, told, rounds + 1)
        return ToolRun(
            answer=answer, messages=tuple(messages), results=tuple(results), rounds=rounds
        )

    def _runs(self, answer: Answer) -> bool:
        """Whether all that an answer calls can be answered here."""
        others = self.ask.names - self.ask.functions.keys()
        ended = answer.finish == "tool_calls" and answer.tool_calls
        return bool(ended) and not any(call.name in others for call in answer.tool_calls)


def tool_message(call: ToolCall, content: str) -> Message:
    """The message that answers a call."""
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


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
        content = _as_text(function(**arguments))
    except Exception as raised:  # noqa: BLE001 - whatever a tool raises is for the model to read
        text = f"error: {type(raised).__name__}: {raised}"
        return ToolResult(call=call, content=text, error=raised)
    return ToolResult(call=call, content=content)


def _as_text(result: object) -> str:
    """A function's result as a model reads it: text as it is, the rest as JSON."""
    if isinstance(result, str):
        return result
    return json.dumps(result, ensure_ascii=False, default=str)
