"""How the tokens of a context were or must be computed: stretches by chunk and by step.

And so how many leading tokens of one context may stand for those of another: as many as both have
in common, and as were computed as they must be. A stretch of one token by chunk is a kind of its
own, since a chunk of one rounds like a step.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import Enum

from agent.worker.chunk_grid import is_odd_end, next_end
from bus.messages.parts import Segment


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the context up to, not including, token `stop`."""

    stop: int
    by_step: bool


Spans = tuple[Span, ...]


class _Kind(Enum):
    """What rounds alike."""

    CHUNK = "chunk"
    SINGLE = "chunk of one"
    STEP = "step"


def make_spans(segments: tuple[Segment, ...], tokens: int) -> Spans:
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


def tokens_by_chunk(spans: Spans, computed: int) -> int:
    """How many of the first `computed` tokens went by chunk before the first that did not."""
    return min(computed, spans[0].stop) if spans and not spans[0].by_step else 0


def common_tokens(one: array[int], other: array[int], limit: int) -> int:
    """How many of their first `limit` tokens two lists have in common."""
    if one[:limit] == other[:limit]:
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def usable(wanted: Spans, found: Spans, tokens: int, *, exact: bool, grid: bool = False) -> int:
    """How many leading tokens of found keys and values can stand for those wanted.

    What lies behind the last span went by step. What is wanted by step is never taken from a
    chunk: it is a replay, which is to give the same bits. What is wanted by chunk may be taken from
    steps, unless it is to be exact. The cut leaves no single token of a chunk.

    Args:
        wanted: how a sequence is to be computed.
        found: how the other one was.
        tokens: leading tokens that both have.
        exact: whether the bits must be those that the sequence would compute.
        grid: whether chunks keep to the middles of blocks (`chunk_grid`).

    Returns:
        0 to `tokens`.
    """
    tokens = _alike(wanted, found, tokens, exact)
    if grid and exact:
        odd = _odd_ends(wanted) ^ _odd_ends(found)
        tokens = min([tokens, *(stop - 2 for stop in odd)])
    return _whole(wanted, tokens, grid)


def cut_ahead(spans: Spans, tokens: int, *, grid: bool = False) -> int:
    """Where spans can be cut so that they still say how each token before the cut was computed.

    A stretch that is cut must not look like a chunk of one, nor end where its last tokens would
    have gone by another chunk (`chunk_grid`).

    Args:
        spans: how the tokens were computed.
        tokens: the cut, wherever it falls.
        grid: whether chunks keep to the middles of blocks.

    Returns:
        `tokens`, or up to 3 less.
    """
    start = 0
    for span in spans:
        if start < tokens < span.stop and not span.by_step:
            if grid and is_odd_end(span.stop):
                tokens = min(tokens, span.stop - 2)
            if grid and is_odd_end(tokens):
                tokens -= 2
            return max(start, tokens - (tokens - start == 1))
        start = span.stop
    return tokens


def _alike(wanted: Spans, found: Spans, tokens: int, exact: bool) -> int:
    """How many leading tokens went as they should."""
    for start, stop, wants in _stretches(wanted, tokens):
        for low, high, was in _stretches(found, stop):
            if high > start and wants != was and (exact or wants != _Kind.CHUNK):
                return max(low, start)
    return tokens


def _odd_ends(spans: Spans) -> set[int]:
    return {span.stop for span in spans if not span.by_step and is_odd_end(span.stop)}


def _stretches(spans: Spans, tokens: int) -> list[tuple[int, int, _Kind]]:
    """Start, stop and kind of the stretches of the first `tokens` tokens."""
    stretches = []
    start = 0
    for span in (*spans, Span(tokens, True)):
        stop = min(span.stop, tokens)
        if stop > start:
            stretches.append((start, stop, _kind(span, start)))
        start = max(start, stop)
    return stretches


def _kind(span: Span, start: int) -> _Kind:
    if span.by_step:
        return _Kind.STEP
    return _Kind.SINGLE if span.stop - start == 1 else _Kind.CHUNK


def _whole(wanted: Spans, tokens: int, grid: bool) -> int:
    """One token less where the cut would leave a single one before a chunk must end."""
    span = next((span for span in wanted if tokens <= span.stop), None)
    if span is None or span.by_step or tokens in (0, span.stop):
        return tokens
    end = next_end(tokens, span.stop) if grid else span.stop
    return tokens - (end - tokens == 1)
