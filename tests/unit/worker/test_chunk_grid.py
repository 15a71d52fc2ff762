"""Where chunks end so that their lengths change no bit."""

from __future__ import annotations

import pytest

from agent.worker.chunk_grid import last_end
from agent.worker.spans import Span, usable


@pytest.mark.parametrize(
    ("past", "stop", "end"),
    [
        (0, 40, 40),
        (0, 64, 64),
        (0, 66, 64),
        (0, 500, 64),
        (64, 500, 192),
        (100, 500, 192),
        (192, 500, 320),
        (448, 500, 500),
        # One token would be left behind the middle.
        (0, 65, 63),
        (63, 65, 65),
        (64, 193, 191),
        (191, 193, 193),
        # A stretch that begins right before a middle.
        (63, 500, 192),
        (63, 64, 64),
        (62, 65, 65),
    ],
)
def test_a_chunk_ends_at_a_middle_or_with_its_stretch(past: int, stop: int, end: int) -> None:
    assert last_end(past, stop) == end


@pytest.mark.parametrize(
    ("wanted", "found", "tokens", "usable_tokens"),
    [
        (300, 300, 200, 200),
        (300, 200, 150, 150),
        # Up to the token before a middle: what is left to it would be one.
        (300, 300, 191, 190),
        (300, 300, 192, 192),
        # The other's last token but one is on the other side of the middle.
        (300, 193, 192, 190),
        (193, 300, 191, 191),
        (193, 193, 191, 191),
        (193, 193, 190, 189),
    ],
)
def test_what_can_be_taken_over_exactly(
    wanted: int, found: int, tokens: int, usable_tokens: int
) -> None:
    spans = (Span(wanted, False),), (Span(found, False),)
    assert usable(*spans, tokens, exact=True, grid=True) == usable_tokens
