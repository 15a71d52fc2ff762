"""Streams that always run while a fleet is struck, each token of them checked.

A stream that ends is followed by another at once. What every prompt's answer is when nothing
happens is learned first; afterwards each answer is held against it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bus.call import Call
from bus.client import Client
from bus.client_events import OtherEvent, StreamEvent
from bus.errors import NoHead, SuperfluidError, TimedOut
from bus.messages.api import PlacedEvent, TokenEvent

#: Failures that are kept in words; all are counted.
MAX_SAID = 20
#: A stream that got a token within this flows. Longer than any pause of an undisturbed one.
FLOWING_S = 1.0
_MOVED = "moved"


class Door(Protocol):
    """What a load needs of the client; `bus.client.Client` is one."""

    def clock(self) -> float:
        """Seconds."""

    def pump(self, until: float | None) -> None:
        """Send, then wait for at least one message, a timeout, or `until`."""

    def settle(self) -> None:
        """See that what was sent has arrived."""

    def attach(self, *, session: str) -> Call:
        """Read an answer from its first token on."""


#: Starts the answer to the prompt of a number, under an idempotency key.
Ask = Callable[[int, str], Call]


def greedy(
    client: Client,
    model: str,
    prompts: Sequence[str | Sequence[int]],
    *,
    max_new: int,
    exact: bool,
) -> Ask:
    """Asks for answers of `max_new` tokens that are the same each time."""

    def ask(number: int, key: str) -> Call:
        return client.generate(
            model,
            prompts[number],
            max_new=max_new,
            temperature=0.0,
            ignore_eos=True,
            exact=exact,
            key=key,
        )

    return ask


@dataclass(slots=True)
class Tally:
    """What became of all streams.

    Attributes:
        streams: that were begun.
        completed: that ended as they should.
        failed: that ended by an error, or do not hold what the head's log holds.
        lost: tokens that never came.
        repeated: tokens that came twice.
        compared: whole answers that were held against the undisturbed one.
        differing: those of them that were not equal, though their moves were exact.
        inexact: answers that differ after a move that the head called inexact.
        tokens: that came.
        said: what the first failures said.
    """

    streams: int = 0
    completed: int = 0
    failed: int = 0
    lost: int = 0
    repeated: int = 0
    compared: int = 0
    differing: int = 0
    inexact: int = 0
    tokens: int = 0
    said: list[str] = field(default_factory=list)

    def fail(self, why: str) -> None:
        """Count a failed stream."""
        self.failed += 1
        if len(self.said) < MAX_SAID:
            self.said.append(why)


@dataclass(slots=True)
class Gap:
    """What one stream felt of one strike, in seconds.

    Attributes:
        longest_s: the longest time between two of its tokens.
        replay_s: of that, from its new place to the first new token; 0 when it did not move.
    """

    longest_s: float = 0.0
    replay_s: float = 0.0

    def felt(self, waited_s: float, replay_s: float) -> None:
        """A token came after so long; the longest wait counts."""
        if waited_s > self.longest_s:
            self.longest_s, self.replay_s = waited_s, replay_s


@dataclass(slots=True)
class _Stream:
    number: int
    call: Call
    node: str = ""
    came: int = 0
    exact: bool = True
    #: When its last token came, and when it was last moved since then.
    last_s: float | None = None
    moved_s: float | None = None
    gap: Gap | None = None


class StreamLoad:
    """Keeps a number of streams running over one client. Used by the client's thread.

    Args:
        client: its connection; it goes on over restarts of the head.
        ask: starts one.
        streams: that run at once.
        prompts: how many different ones `ask` knows, from 0.
        exact: whether moved answers are to equal the undisturbed ones.
    """

    def __init__(
        self, client: Door, ask: Ask, *, streams: int, prompts: int, exact: bool, name: str
    ) -> None:
        self._client = client
        self._ask = ask
        self._count = streams
        self._prompts = prompts
        self._exact = exact
        self._name = name
        self._open: list[_Stream] = []
        self._begun = 0
        self._expected: list[tuple[int, ...]] = []
        self.tally = Tally()

    # --- before -------------------------------------------------------------------------------

    def learn(self) -> None:
        """Ask every prompt once, as many together as later; keep the answers.

        Raises:
            SuperfluidError: one of them failed, with nothing having been done to the fleet;
                `cancel` ends the others.
        """
        found: list[tuple[int, ...]] = []
        while len(found) < self._prompts:
            numbers = range(len(found), min(self._prompts, len(found) + self._count))
            for number in numbers:
                call = self._ask(number, f"{self._name}-learn-{number}")
                self._open.append(_Stream(number, call))
            found += [stream.call.result().tokens for stream in self._open]
            self._open = []
        self._expected = found

    # --- while it is struck -------------------------------------------------------------------

    @property
    def clock(self) -> Callable[[], float]:
        """The clock of all times here."""
        return self._client.clock

    @property
    def nodes(self) -> dict[str, int]:
        """How many streams run on each node, by identity."""
        found: dict[str, int] = {}
        for stream in self._open:
            found[stream.node] = found.get(stream.node, 0) + 1
        return found

    def turn(self, wait_s: float) -> None:
        """Begin streams where some are missing, then take what comes within a time."""
        has_head = True
        while has_head and len(self._open) < self._count:
            has_head = self._begin()
        if has_head:
            self._client.pump(self.clock() + wait_s)
        else:
            # Nothing tells when a head begins to listen; this only spaces the attempts.
            time.sleep(wait_s)
        now = self.clock()
        self._open = [stream for stream in self._open if self._drain(stream, now)]

    def struck(self, node: str | None) -> list[Gap]:
        """From now on measure what the streams feel that have begun.

        Args:
            node: only those that run there; None for all.

        Returns:
            One of each, which is filled in from now on.
        """
        gaps = []
        for stream in self._open:
            hit = stream.last_s is not None and node in (None, stream.node)
            stream.gap = Gap() if hit else None
            if stream.gap is not None:
                gaps.append(stream.gap)
        return gaps

    def still(self) -> int:
        """How many streams have got no token for a while, or none yet."""
        since = self.clock() - FLOWING_S
        return sum(stream.last_s is None or stream.last_s < since for stream in self._open)

    def calm(self) -> None:
        """The strike is over."""
        for stream in self._open:
            stream.gap = None

    def finish(self, limit_s: float) -> None:
        """Let the streams that run come to their ends; who does not in time has failed."""
        until = self.clock() + limit_s
        while self._open and self.clock() < until:
            self._client.pump(min(until, self.clock() + 0.1))
            now = self.clock()
            self._open = [stream for stream in self._open if self._drain(stream, now)]
        for stream in self._open:
            self.tally.fail(f"stream {stream.number} did not end in {limit_s:g} s")
        self.cancel()

    def cancel(self) -> None:
        """End the streams that run, at the head too."""
        for stream in self._open:
            stream.call.cancel()
        if self._open:
            self._client.settle()
        self._open = []

    # --- inside -------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Begin one more stream; False while there is no head to begin it.

        The client itself waits for the next head while requests are open, and only then.
        """
        number = self._begun % self._prompts
        key = f"{self._name}-{self._begun}"
        try:
            call = self._ask(number, key)
        except NoHead:
            return False
        except SuperfluidError as error:
            self.tally.fail(f"a stream could not begin: {error.message}")
            raise
        self._begun += 1
        self.tally.streams += 1
        self._open.append(_Stream(number, call))
        return True

    def _drain(self, stream: _Stream, now: float) -> bool:
        """Take what came of a stream; False when it has ended."""
        try:
            # A time that is over: nothing is waited for.
            while (event := stream.call.next_event(now)) is not None:
                self._take(stream, event, now)
        except TimedOut:
            if not stream.call.done:
                return True
            self.tally.fail(f"stream {stream.number} did not end within its timeout")
        except SuperfluidError as error:
            self._broken(stream, error)
        else:
            self._ended(stream)
        return False

    def _take(self, stream: _Stream, event: StreamEvent, now: float) -> None:
        if isinstance(event, PlacedEvent):
            stream.node = event.node
        elif isinstance(event, OtherEvent) and event.type == _MOVED:
            stream.node = str(event.body.get("to", ""))
            stream.exact = stream.exact and bool(event.body.get("exact"))
            stream.moved_s = now
        elif isinstance(event, TokenEvent) and event.tokens:
            self._tokens(stream, event, now)

    def _tokens(self, stream: _Stream, event: TokenEvent, now: float) -> None:
        # The client refuses gaps and repeats too; here they are counted whatever it does.
        self.tally.lost += max(0, event.offset - stream.came)
        self.tally.repeated += max(0, stream.came - event.offset)
        stream.came = event.offset + len(event.tokens)
        self.tally.tokens += len(event.tokens)
        if stream.gap is not None and stream.last_s is not None:
            replay_s = 0.0 if stream.moved_s is None else now - stream.moved_s
            stream.gap.felt(now - stream.last_s, replay_s)
        stream.last_s, stream.moved_s = now, None

    def _broken(self, stream: _Stream, error: SuperfluidError) -> None:
        offset, cursor = error.details.get("offset"), error.details.get("cursor")
        if isinstance(offset, int) and isinstance(cursor, int):
            self.tally.lost += max(0, offset - cursor)
            self.tally.repeated += max(0, cursor - offset)
        self.tally.fail(
            f"stream {stream.number} after {stream.came} tokens: {error.code}: {error.message}"
        )

    def _ended(self, stream: _Stream) -> None:
        answer = stream.call.result()
        expected = self._expected[stream.number]
        self.tally.compared += 1
        if answer.tokens == expected:
            self.tally.completed += 1
            return
        if len(answer.tokens) != len(expected):
            self.tally.lost += max(0, len(expected) - len(answer.tokens))
            self.tally.repeated += max(0, len(answer.tokens) - len(expected))
            self.tally.fail(
                f"stream {stream.number} has {len(answer.tokens)} tokens, not {len(expected)}"
            )
            return
        if self._exact and stream.exact:
            self.tally.differing += 1
        else:
            self.tally.inexact += 1
        self._check_log(stream, answer.tokens, answer.session)

    def _check_log(self, stream: _Stream, came: Sequence[int], session: str) -> None:
        """Hold what came against what the head kept of it, from the first token on."""
        try:
            kept = self._client.attach(session=session).result().tokens
        except SuperfluidError as error:
            self.tally.fail(f"stream {stream.number} can not be read again: {error.message}")
            return
        if kept != tuple(came):
            self.tally.fail(f"stream {stream.number} is not what the head's log holds")
            return
        self.tally.completed += 1
