"""From a window's tokens to what is said when, and where the next window begins. Pure.

Times are counted in ticks of 20 ms, the distance of two timestamps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from agent.models.transcriber_figures import TIMESTAMP_S, WINDOW_S, TranscriberFigures

WINDOW_TICKS = round(WINDOW_S / TIMESTAMP_S)
#: A window moves on by so much at least, whatever the model says: the work is bounded by the audio.
LEAST_ADVANCE = round(0.5 / TIMESTAMP_S)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Text tokens between two ticks of the window."""

    start: int
    end: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WindowText:
    """A window's stretches, and by how many ticks the next window begins later."""

    stretches: tuple[Stretch, ...]
    advance: int


def split_window(
    tokens: Sequence[int], figures: TranscriberFigures, content_ticks: int
) -> WindowText:
    """Take a window's transcript apart.

    What lies behind the last pair of timestamps is cut off by the window's end, so the next window
    begins there and hears it whole; a transcript that ends in one timestamp is complete.

    Args:
        tokens: from the first timestamp on, without the token of the end.
        figures: of the model.
        content_ticks: how much of the window is audio, rounded up.
    """
    first = figures.first_timestamp
    stamped = [token >= first for token in tokens]
    pairs = [i for i in range(1, len(tokens)) if stamped[i] and stamped[i - 1]]
    complete = stamped[-2:] == [False, True]
    if not pairs:
        return WindowText(_whole(tokens, stamped, first, content_ticks), WINDOW_TICKS)
    ends = [*pairs, len(tokens)] if complete else pairs
    found = tuple(_between(tokens, [0, *ends], first, content_ticks))
    if complete:
        return WindowText(found, WINDOW_TICKS)
    return WindowText(found, max(LEAST_ADVANCE, tokens[pairs[-1] - 1] - first))


def _between(
    tokens: Sequence[int], cuts: Sequence[int], first: int, content_ticks: int
) -> Iterator[Stretch]:
    for begin, end in pairwise(cuts):
        part = tokens[begin:end]
        start, stop = part[0] - first, min(part[-1] - first, content_ticks)
        text = tuple(token for token in part if token < first)
        if text and start < stop:
            yield Stretch(start, stop, text)


def _whole(
    tokens: Sequence[int], stamped: Sequence[bool], first: int, content_ticks: int
) -> tuple[Stretch, ...]:
    """All text as one stretch, to the last timestamp or the audio's end."""
    text = tuple(token for token in tokens if token < first)
    stamps = [token - first for token, is_stamp in zip(tokens, stamped, strict=True) if is_stamp]
    start = stamps[0] if stamps else 0
    stop = stamps[-1] if len(stamps) > 1 else content_ticks
    stop = min(stop, content_ticks)
    return (Stretch(start, stop, text),) if text and start < stop else ()
