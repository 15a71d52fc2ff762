"""A request for an answer, as its caller holds it: wait for it, or read it as it comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

from bus.answer import Answer, read_answer
from bus.client_events import ClientEvent, Ended, Failed, StreamEvent, end_tail
from bus.client_session import ClientSession
from bus.errors import SuperfluidError, TimedOut, WireError
from bus.ids import RequestId
from bus.messages.api import PlacedEvent, QueuedEvent, TokenEvent, TokenLogprob
from bus.messages.tool_calls import ToolCall

Queued = QueuedEvent
Placed = PlacedEvent
Token = TokenEvent


class Pump(Protocol):
    """What a call needs of its client: the session, time, and a way to let things happen."""

    @property
    def session(self) -> ClientSession: ...

    def clock(self) -> float: ...

    def flush(self) -> None:
        """Send what is to be sent."""

    def settle(self) -> None:
        """Send, and see that it has arrived."""

    def pump(self, until: float | None) -> None:
        """Send, then wait for at least one message, a timeout, or `until`."""


class Call:
    """One `generate`, `chat` or `attach` that was sent. Used by its client's thread.

    Owns what came of the answer so far. Any number may be open at once: whichever waits lets all
    others receive too, as far as their credit goes.

    Invariant: exactly one of answer and error is set at the end, and never changes.
    """

    def __init__(self, client: Pump, request: RequestId) -> None:
        self._client = client
        self._request = request
        self._pending: deque[ClientEvent] = deque()
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._reasoning: list[str] = []
        self._tool_calls: list[ToolCall] = []
        self._answer: Answer | None = None
        self._error: SuperfluidError | None = None

    @property
    def text(self) -> str:
        """The text that came so far; does not wait."""
        return "".join(self._text)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids that came so far; does not wait."""
        return tuple(self._tokens)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """The log-probabilities that came so far, if they were asked for; does not wait."""
        return tuple(self._logprobs)

    @property
    def reasoning(self) -> str:
        """The reasoning that came so far; does not wait."""
        return "".join(self._reasoning)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls that came so far, each whole; does not wait."""
        return tuple(self._tool_calls)

    @property
    def done(self) -> bool:
        """Whether the answer is complete or has failed."""
        return self._answer is not None or self._error is not None

    def result(self, timeout_s: float | None = None) -> Answer:
        """Wait for the whole answer.

        Args:
            timeout_s: how long this wait may take; the request goes on after it. None waits as
                long as the request's own timeout allows.

        Raises:
            TimedOut: it took longer.
            SuperfluidError: how the request failed; `text` and `tokens` keep what came before.
        """
        until = None if timeout_s is None else self._client.clock() + timeout_s
        while self.next_event(until) is not None:
            pass
        return self._finished()

    def stream(self) -> Stream:
        """The answer as it comes; leaving the `with` early cancels the request."""
        return Stream(self)

    def cancel(self) -> None:
        """Ask the head to stop; the answer then ends with finish `cancelled`."""
        if not self.done:
            self._client.session.cancel(self._request)
            self._client.flush()

    def abandon(self) -> None:
        """Cancel and wait for nothing more."""
        if not self.done:
            self._client.session.abandon(self._request)
            self._error = WireError("the request was given up here; nothing more comes of it")
            self._client.settle()

    def next_event(self, until: float | None) -> StreamEvent | None:
        """The next event, waiting for it; None at the end.

        Args:
            until: when to stop waiting, on the client's clock; None waits for the request's own
                deadline.

        Raises:
            TimedOut: `until` came first.
            SuperfluidError: how the request failed.
        """
        try:
            while not self.done:
                if not self._pending:
                    self._pending.extend(self._client.session.take(self._request))
                    self._client.flush()
                if self._pending:
                    event = self._take_in(self._pending.popleft())
                    if event is not None:
                        return event
                elif until is not None and self._client.clock() >= until:
                    raise TimedOut(
                        "no whole answer in time; wait again with result(), or cancel()",
                        details={"offset": len(self._tokens)},
                    )
                else:
                    self._client.pump(until)
        except KeyboardInterrupt:
            self.abandon()
            raise
        if self._error is not None:
            raise self._error
        return None

    def _finished(self) -> Answer:
        if self._error is not None:
            raise self._error
        if self._answer is None:
            raise WireError("the answer has not ended; wait with result()")
        return self._answer

    def _take_in(self, event: ClientEvent) -> StreamEvent | None:
        if isinstance(event, Failed):
            self._error = event.error
            return None
        if isinstance(event, Ended):
            return self._end(event)
        if isinstance(event, TokenEvent):
            self._take_tokens(event)
        return event

    def _take_tokens(self, event: TokenEvent) -> None:
        self._text.append(event.text)
        self._tokens.extend(event.tokens)
        self._logprobs.extend(event.logprobs or ())
        if event.reasoning:
            self._reasoning.append(event.reasoning)
        self._tool_calls.extend(event.tool_calls)

    def _end(self, event: Ended) -> TokenEvent | None:
        try:
            tail = end_tail(event.body, len(self._tokens))
            self._take_tokens(tail)
            self._answer = read_answer(
                event.body,
                self.text,
                self._tokens,
                self._logprobs,
                self.reasoning,
                self._tool_calls,
            )
        except WireError as error:
            self._error = error
            return None
        # A reader that prints each event's text must see the tail too.
        return tail if tail.text or tail.reasoning or tail.tool_calls else None


class Stream:
    """The events of one call, in order; iterate it inside `with`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @property
    def text(self) -> str:
        """The text so far."""
        return self._call.text

    def cancel(self) -> None:
        """Ask the head to stop; the events then end, with finish `cancelled`."""
        self._call.cancel()

    def result(self, timeout_s: float | None = None) -> Answer:
        """Wait for the rest and give the whole answer, as `Call.result`."""
        return self._call.result(timeout_s)

    def __iter__(self) -> Iterator[StreamEvent]:
        return self

    def __next__(self) -> StreamEvent:
        event = self._call.next_event(None)
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._call.abandon()
