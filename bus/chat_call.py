"""A request for an answer to messages, and the loop that runs the tools which the answer calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.answer import Answer
from bus.call import Call, Pump
from bus.errors import ContextLengthExceeded, Invalid, TooLarge
from bus.ids import RequestId
from bus.tool_functions import Function
from bus.tool_results import Message, ToolResult, run_call, without_longest

#: How often a model is given results before it has to answer.
MAX_ROUNDS = 8
#: How often results of one round are told shorter because the head refused them.
_MOST_REFUSED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """A conversation after its tools were run.

    Attributes:
        answer: the last one. It has calls when the rounds were used up, when it calls a tool that
            is no Python function, or when it did not end with them: run those yourself and go on
            with `messages`.
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
        follow: asks again, from the answer, the messages that follow it, and the round's name.
    """

    messages: Sequence[Message]
    follow: Callable[[Answer, Sequence[Message], str], ChatCall]
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

        What a function raises is told to the model as text, and kept in `results`; so is that a
        result is too long for a request or for the model's window. A name that is no tool's is
        never called. A tool choice counts for the first answer only. Calls are run of an answer
        that ended with them (`finish` is `tool_calls`): one that went on until `max_new` cut it is
        given back as it is, its calls in `answer.tool_calls`.

        Args:
            max_rounds: how often the model may be given results, from 0 on.
            on_result: told of each result as it is there.

        Raises:
            Invalid: max_rounds is below 0.
            SuperfluidError: how a request failed.
        """
        if max_rounds < 0:
            raise Invalid(f"max_rounds is {max_rounds}; it should be 0 or more", param="max_rounds")
        call, answer = self, self.result()
        messages = [*self.ask.messages, answer.message()]
        results: list[ToolResult] = []
        rounds = 0
        while rounds < max_rounds and self._runs(answer):
            rounds += 1
            fresh = []
            for made in answer.tool_calls:
                fresh.append(run_call(made, self.ask.functions))
                if on_result is not None:
                    on_result(fresh[-1])
            call, answer, told = _ask_again(call, answer, fresh, rounds)
            results += told
            messages += [*(result.message() for result in told), answer.message()]
        return ToolRun(
            answer=answer, messages=tuple(messages), results=tuple(results), rounds=rounds
        )

    def _runs(self, answer: Answer) -> bool:
        """Whether all that an answer calls can be answered here."""
        others = self.ask.names - self.ask.functions.keys()
        ended = answer.finish == "tool_calls" and answer.tool_calls
        return bool(ended) and not any(call.name in others for call in answer.tool_calls)


def _ask_again(
    call: ChatCall, answer: Answer, results: list[ToolResult], turn: int
) -> tuple[ChatCall, Answer, list[ToolResult]]:
    """Ask with the results of an answer's calls; gives them as they were told.

    Raises:
        SuperfluidError: how the request failed, however short its longest results became.
    """
    refused = 0
    while True:
        told = [result.message() for result in results]
        try:
            following = call.ask.follow(answer, told, f"{turn}.{refused}" if refused else f"{turn}")
        except TooLarge as error:  # Not sent.
            results = without_longest(results, error)
            continue
        try:
            return following, following.result(), results
        except (TooLarge, ContextLengthExceeded) as error:
            refused += 1
            if refused > _MOST_REFUSED:
                raise
            results = without_longest(results, error)
