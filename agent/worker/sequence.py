"""A sequence: one generation on its way through the worker.

Tokens `[0, computed)` have keys and values in the lane; token `computed` is fed next. A sequence
is over its context when `computed` reaches the last token known, and each run that computes the
last token known gives the next one. So prefill, replay of generated tokens and decoding are one
thing: feeding what is not computed yet, by chunk or by step as `spans` say.

Spans matter for exactness: a chunk and a step round differently, chunks of any length 2 to 128
alike, steps alike in any batch. Feeding a context again the way it was fed first gives the same
bits. Neighbouring chunk spans count as one, so that none of a single token is left; a prompt of
one token alone is a chunk of one, which is the same run as a step.

A sequence may begin with keys and values that others computed (`reuse`), lose its lane and get
one again (`preemption`), or begin anew (`rewind`): in each case it goes on from `computed`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from agent.worker.refusal import fault_finish
from agent.worker.spans import Spans, make_spans
from bus.errors import SuperfluidError
from bus.ids import GenerationId, unpack_ids
from bus.messages.parts import Finish, Usage
from bus.messages.worker import Submit
from bus.qos import LOWEST_CLASS

#: More than any context has.
ALL_TOKENS = 1 << 40


@dataclass(slots=True)
class Sequence:
    """One generation. Owned and changed by the scheduler alone.

    Attributes:
        arrival: rank among all submits.
        qos: class, 0 to 3, lower first.
        exact: take over nothing that was computed in another way.
        salt: prefixes are shared only with sequences of the same.
        tokens: context and what was generated.
        spans: cover the context in order, kinds alternating.
        token_limit: length of `tokens` at which it ends with `length`.
        deadline_s: when its wall budget is used up; None without one.
    """

    generation: GenerationId
    arrival: int
    tokens: array[int]
    spans: Spans
    prompt_tokens: int
    token_limit: int
    deadline_s: float | None
    qos: int
    exact: bool
    salt: bytes
    #: Since when it waits for its next token without having a turn; None while it decodes.
    waits_since: float | None
    #: Its grammar is being compiled.
    held: bool = False
    #: Length of `tokens` at the start; what follows was generated here.
    context_tokens: int = field(init=False)
    #: 0 <= computed < len(tokens), but for an instant inside a commit.
    computed: int = 0
    #: None while it waits.
    lane: int | None = None
    paused: bool = False
    #: Index into `spans` of the span with token `computed`; len(spans) beyond the context.
    span: int = 0
    #: Tokens of the prompt that were taken over and not computed.
    cached: int = 0
    #: Leading tokens whose keys and values are, bit by bit, what it would have computed itself.
    exact_tokens: int = ALL_TOKENS
    #: Where its keys and values are in host memory while it is preempted.
    saved: int | None = None
    #: It is not preempted before this time, or before this many tokens are computed.
    safe_until_s: float = 0.0
    safe_until_tokens: int = 0
    paused_since: float = 0.0
    #: Hashes of its full blocks as far as they were asked for.
    hashes: list[bytes] = field(default_factory=list)
    _waited_s: float = 0.0

    def __post_init__(self) -> None:
        self.context_tokens = len(self.tokens)

    @property
    def generated(self) -> int:
        """Tokens made by this generation."""
        return len(self.tokens) - self.context_tokens

    @property
    def wants_chunk(self) -> bool:
        """Whether the next tokens go by chunk; else by step."""
        return self.span < len(self.spans) and not self.spans[self.span].by_step

    @property
    def chunk_stop(self) -> int:
        """Where the current span ends."""
        return self.spans[self.span].stop

    def waited_s(self, now: float) -> float:
        """Seconds that it has waited in all: for its first token, and while preempted."""
        return self._waited_s + (0.0 if self.waits_since is None else now - self.waits_since)

    def wait(self, now: float) -> None:
        """It waits from now on, unless it does already."""
        if self.waits_since is None:
            self.waits_since = now

    def stop_waiting(self, now: float) -> None:
        """It has its turns."""
        self._waited_s = self.waited_s(now)
        self.waits_since = None

    def advance(self, tokens: int) -> bool:
        """Count tokens as computed; True when a next token can now be drawn."""
        self.computed += tokens
        while self.span < len(self.spans) and self.spans[self.span].stop <= self.computed:
            self.span += 1
        return self.computed == len(self.tokens)

    def rewind(self) -> None:
        """Begin anew with nothing computed; what was generated goes by step again."""
        self.computed = self.span = 0
        self.cached = 0
        self.exact_tokens = ALL_TOKENS

    def take_over(self, tokens: int, exact_tokens: int) -> None:
        """Count keys and values of its first tokens as computed, which others computed.

        Args:
            tokens: how many.
            exact_tokens: how many of them are what it would have computed itself; once they are
                not, nothing behind them is.
        """
        self.advance(tokens)
        self.cached = tokens
        self.exact_tokens = ALL_TOKENS if exact_tokens >= tokens else exact_tokens

    def reason_to_end(self, drawn: str, now: float) -> str:
        """Why it ends with its last token, or nothing.

        Args:
            drawn: `eos` or `stop`, when the token itself ends it. Expired goes before, length
                behind.
            now: seconds.
        """
        if self.deadline_s is not None and now >= self.deadline_s:
            return "expired"
        if drawn:
            return drawn
        return "length" if len(self.tokens) >= self.token_limit else ""

    def finish(self, reason: str, stop: str = "") -> Finish:
        """The end of this generation, with its usage."""
        return Finish(reason=reason, usage=self._usage(), stop=stop)

    def error(self, error: SuperfluidError) -> Finish:
        """The end of this generation by a fault."""
        return fault_finish("error", error, self._usage())

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=min(self.cached, self.prompt_tokens),
            completion_tokens=self.generated,
        )


def make_sequence(submit: Submit, *, arrival: int, window: int, now: float) -> Sequence:
    """A waiting sequence for a submit that was checked."""
    tokens = unpack_ids(submit.context)
    return Sequence(
        generation=submit.generation,
        arrival=arrival,
        tokens=tokens,
        spans=make_spans(submit.segments, len(tokens)),
        prompt_tokens=submit.prompt_tokens,
        token_limit=min(len(tokens) + submit.max_new_tokens, window),
        deadline_s=now + submit.wall_ms / 1000.0 if submit.wall_ms else None,
        qos=min(submit.qos, LOWEST_CLASS),
        exact=submit.exact,
        salt=submit.salt,
        waits_since=now,
    )
