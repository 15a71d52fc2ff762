"""A sequence: one generation on its way through the worker.

Tokens `[0, computed)` have keys and values in the lane; token `computed` is fed next. A sequence
is over its context when `computed` reaches the last token known, and each run that computes the
last token known gives the next one. So prefill, replay of generated tokens and decoding are one
thing: feeding what is not computed yet, by chunk or by step as `spans` say.

Spans matter for exactness: a chunk and a step round differently, chunks of any length 2 to 128
alike, steps alike in any batch. Feeding a context again the way it was fed first gives the same
bits. Neighbouring chunk spans count as one, so that none of a single token is left; a prompt of
one token alone is a chunk of one, which is the same run as a step.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from bus.errors import SuperfluidError
from bus.ids import GenerationId, unpack_ids
from bus.messages.parts import Finish, Segment, Usage
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Submit


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the context up to, not including, token `stop`."""

    stop: int
    by_step: bool


@dataclass(slots=True)
class Sequence:
    """One generation. Owned and changed by the scheduler alone.

    Attributes:
        arrival: rank among all submits, for first come first served.
        tokens: context and what was generated.
        spans: cover the context in order, kinds alternating.
        token_limit: length of `tokens` at which it ends with `length`.
        deadline_s: when its wall budget is used up; None without one.
    """

    generation: GenerationId
    arrival: int
    tokens: array[int]
    spans: tuple[Span, ...]
    sampling: SamplingParams
    prompt_tokens: int
    token_limit: int
    deadline_s: float | None
    #: Length of `tokens` at the start; what follows was generated here.
    context_tokens: int = field(init=False)
    #: 0 <= computed < len(tokens), but for an instant inside a commit.
    computed: int = 0
    #: None while it waits.
    lane: int | None = None
    paused: bool = False
    #: Index into `spans` of the span with token `computed`; len(spans) beyond the context.
    span: int = 0

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
    def chunk_left(self) -> int:
        """Tokens left of the current span."""
        return self.spans[self.span].stop - self.computed

    def advance(self, tokens: int) -> bool:
        """Count tokens as computed; True when a next token can now be drawn."""
        self.computed += tokens
        while self.span < len(self.spans) and self.spans[self.span].stop <= self.computed:
            self.span += 1
        return self.computed == len(self.tokens)

    def finish(self, reason: str) -> Finish:
        """The end of this generation, with its usage."""
        return Finish(reason=reason, usage=self._usage())

    def error(self, error: SuperfluidError) -> Finish:
        """The end of this generation by a fault."""
        return Finish(
            reason="error", error_code=error.code, message=error.message, usage=self._usage()
        )

    def _usage(self) -> Usage:
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.generated)


def make_sequence(submit: Submit, *, arrival: int, window: int, now: float) -> Sequence:
    """A waiting sequence for a submit that was checked."""
    tokens = unpack_ids(submit.context)
    return Sequence(
        generation=submit.generation,
        arrival=arrival,
        tokens=tokens,
        spans=make_spans(submit.segments, len(tokens)),
        sampling=submit.sampling,
        prompt_tokens=submit.prompt_tokens,
        token_limit=min(len(tokens) + submit.max_new_tokens, window),
        deadline_s=now + submit.wall_ms / 1000.0 if submit.wall_ms else None,
    )


def make_spans(segments: tuple[Segment, ...], tokens: int) -> tuple[Span, ...]:
    """Segments as spans: empty ones left out, neighbours of one kind joined.

    Args:
        segments: cover the context; none means one chunk.
        tokens: length of the context.
    """
    if not segments:
        return (Span(tokens, False),)
    spans: list[Span] = []
    stop = 0
    for segment in segments:
        if not segment.tokens:
            continue
        stop += segment.tokens
        if spans and spans[-1].by_step == segment.by_step:
            spans.pop()
        spans.append(Span(stop, segment.by_step))
    return tuple(spans)
