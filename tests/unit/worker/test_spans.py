"""Which keys and values may stand for others, by how they were computed."""

from __future__ import annotations

import pytest

from agent.worker.spans import Span, Spans, cut_ahead, make_spans, tokens_by_chunk, usable
from bus.messages.parts import Segment

CHUNK_100: Spans = (Span(100, False),)
CHUNK_60: Spans = (Span(60, False),)
MIXED: Spans = (Span(60, False), Span(80, True), Span(100, False))


def test_segments_become_spans() -> None:
    assert make_spans((), 7) == (Span(7, False),)
    segments = (Segment(tokens=3), Segment(tokens=0, by_step=True), Segment(tokens=2))
    assert make_spans(segments, 5) == (Span(5, False),)
    assert make_spans((*segments, Segment(tokens=4, by_step=True)), 9) == (
        Span(5, False),
        Span(9, True),
    )


@pytest.mark.parametrize(
    ("spans", "computed", "tokens"),
    [(CHUNK_100, 40, 40), (CHUNK_60, 90, 60), ((Span(5, True),), 5, 0), ((), 5, 0)],
)
def test_leading_tokens_by_chunk(spans: Spans, computed: int, tokens: int) -> None:
    assert tokens_by_chunk(spans, computed) == tokens


@pytest.mark.parametrize(
    ("wanted", "found", "exactly", "otherwise"),
    [
        # A new prompt, over the lane of one that generated behind its 60 prompt tokens.
        (CHUNK_100, CHUNK_60, 60, 90),
        # The next turn of a session finds its tokens as it wants them.
        (MIXED, MIXED, 90, 90),
        # A replay by step takes no token that went by chunk.
        (MIXED, CHUNK_100, 60, 60),
        # One whose steps were chunks elsewhere, and the other way round.
        (CHUNK_100, MIXED, 60, 90),
        # Steps only.
        ((Span(100, True),), (Span(100, True),), 90, 90),
        ((Span(100, True),), CHUNK_100, 0, 0),
    ],
)
def test_what_can_be_taken_over(wanted: Spans, found: Spans, exactly: int, otherwise: int) -> None:
    assert usable(wanted, found, 90, exact=True) == exactly
    assert usable(wanted, found, 90, exact=False) == otherwise


def test_no_cut_leaves_a_chunk_of_one() -> None:
    wanted = (Span(65, False), Span(100, True))
    assert usable(wanted, wanted, 64, exact=True) == 63
    assert usable(wanted, wanted, 65, exact=True) == 65
    assert usable(CHUNK_100, CHUNK_100, 99, exact=True) == 98


#: A prompt, its answer, and what was appended: one token, or more.
SINGLE: Spans = (Span(60, False), Span(80, True), Span(81, False), Span(100, True))
LONGER: Spans = (Span(60, False), Span(80, True), Span(90, False))


@pytest.mark.parametrize(
    ("wanted", "found", "exactly", "otherwise"),
    [
        (LONGER, SINGLE, 80, 90),
        (SINGLE, LONGER, 80, 80),
        (SINGLE, SINGLE, 90, 90),
    ],
)
def test_a_chunk_of_one_stands_for_none_of_a_longer_one(
    wanted: Spans, found: Spans, exactly: int, otherwise: int
) -> None:
    assert usable(wanted, found, 90, exact=True) == exactly
    assert usable(wanted, found, 90, exact=False) == otherwise


@pytest.mark.parametrize(
    ("tokens", "grid", "cut"),
    [
        (100, False, 100),
        (81, False, 80),  # it was no chunk of one
        (82, False, 82),
        (70, False, 70),  # between steps
        (65, True, 65),  # a step
        (193, False, 193),
        (193, True, 191),  # its last two went with what is behind them
        (192, True, 192),
        (320, True, 319),  # the last two of the stretch were a chunk of their own
        (321, True, 321),  # all of it
    ],
)
def test_spans_are_cut_where_they_stay_true(tokens: int, grid: bool, cut: int) -> None:
    spans = (Span(60, False), Span(80, True), Span(321, False))
    assert cut_ahead(spans, tokens, grid=grid) == cut
