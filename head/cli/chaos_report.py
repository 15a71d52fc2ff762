"""What a chaos run found: a table for people, one JSON object for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Any

from head.cli.chaos_run import Strike
from head.cli.chaos_streams import Tally
from head.cli.output import plain_table

_COLUMNS = ("strike", "times", "streams", "gap p50", "p99", "longest", "held", "replay", "well")
#: By the figure's name, the kinds that count for it.
_GAPS = {"node": ("agent", "cut"), "worker": ("worker",), "head": ("head",)}


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that so large a share is not above; None of no values.

    Source: nearest-rank method.
    """
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def gap_table(strikes: Sequence[Strike]) -> Iterator[str]:
    """A line for each kind of strike; seconds."""
    rows = []
    for name in dict.fromkeys(strike.kind.name for strike in strikes):
        of_kind = [strike for strike in strikes if strike.kind.name == name]
        gaps = [gap for strike in of_kind for gap in strike.gaps]
        longest = [gap.longest_s for gap in gaps]
        figures = (
            percentile(longest, 0.5),
            percentile(longest, 0.99),
            max(longest, default=None),
            of_kind[0].held_s,
            percentile((gap.replay_s for gap in gaps), 0.99),
            max(strike.well_s for strike in of_kind),
        )
        rows.append([name, str(len(of_kind)), str(len(gaps)), *map(_seconds, figures)])
    return plain_table(_COLUMNS, rows)


def figures(strikes: Sequence[Strike], tally: Tally) -> dict[str, Any]:
    """All of it under names for programs. Gaps in seconds, None where nothing was struck."""
    ways = [strike.kind.way for strike in strikes]
    found: dict[str, Any] = {
        "streams": tally.streams,
        "kills": ways.count("kill"),
        "stops": ways.count("stop"),
        "cuts": ways.count("cut"),
        "failed": tally.failed,
        "lost": tally.lost,
        "repeated": tally.repeated,
        "texts_equal": not tally.differing,
        "texts_compared": tally.compared,
        "texts_inexact": tally.inexact,
        "tokens": tally.tokens,
    }
    for name, kinds in _GAPS.items():
        gaps = [gap for strike in strikes if strike.kind.name in kinds for gap in strike.gaps]
        found[f"gap_p99_s_{name}"] = _rounded(percentile((g.longest_s for g in gaps), 0.99))
        found[f"gap_without_replay_p99_s_{name}"] = _rounded(
            percentile((g.longest_s - g.replay_s for g in gaps), 0.99)
        )
        found[f"replay_p99_s_{name}"] = _rounded(percentile((g.replay_s for g in gaps), 0.99))
    stops = [strike for strike in strikes if strike.kind.way == "stop"]
    beyond = [max(0.0, g.longest_s - strike.held_s) for strike in stops for g in strike.gaps]
    found["gap_p99_s_beyond_stop"] = _rounded(percentile(beyond, 0.99))
    return found


def is_sound(found: dict[str, Any]) -> bool:
    """Whether no stream failed, lost, repeated or changed anything."""
    return not (found["failed"] or found["lost"] or found["repeated"]) and found["texts_equal"]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
