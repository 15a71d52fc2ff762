"""From rates of rounds to ratios, a table and one JSON object. No measuring here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import median, quantiles
from typing import Any

OURS = "engine"
LOOP = "loop"

#: Rates by kind of work (b1, ..., prefill), then by whose they are, one for each round.
Rates = Mapping[str, Mapping[str, Sequence[float]]]


def peers_of(rates: Rates) -> list[str]:
    """The other runtimes that were measured, in order."""
    return list(
        dict.fromkeys(s for sides in rates.values() for s in sides if s not in (OURS, LOOP))
    )


def best_ratios(sides: Mapping[str, Sequence[float]]) -> list[float]:
    """Ours over the best other runtime of the same round, round by round."""
    others = [rates for side, rates in sides.items() if side not in (OURS, LOOP)]
    best = [max(rates) for rates in zip(*others, strict=True)]
    return [ours / other for ours, other in zip(sides[OURS], best, strict=True)]


def ratios(rates: Rates) -> dict[str, float | None]:
    """`ratio_KIND` of every kind, the median over rounds; None where there were no others."""
    found: dict[str, float | None] = {}
    for kind, sides in rates.items():
        each = best_ratios(sides) if peers_of({kind: sides}) else []
        found[f"ratio_{kind}"] = round(median(each), 3) if each else None
    return found


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return exp(sum(map(log, values)) / len(values))


def interactive_ratio(figures: Mapping[str, float]) -> float:
    """How many idle first-token times the slower busy one takes, less a turn and a snapshot."""
    busy_s = max(figures["reading_s"], figures["decoding_s"])
    return max(0.0, busy_s - figures["turn_s"] - figures["snapshot_s"]) / figures["idle_s"]


def sustained_ratio(minutes: Sequence[Sequence[float]]) -> float | None:
    """Engine over plain loop in the last minute, over the same in the first; medians of each."""
    whole = [minute for minute in minutes if minute]
    return median(whole[-1]) / median(whole[0]) if len(whole) > 1 else None


def rate_table(rates: Rates) -> list[str]:
    """A line for each kind: medians, ours over the loop and over the best, and its quartiles."""
    sides = [OURS, *peers_of(rates)]
    head = "".join(f"{side:>10}" for side in sides)
    lines = [f"{'tokens/s':>10}{head}{'/loop':>8}{'/best':>8}  quartiles"]
    for kind, measured in rates.items():
        line = f"{kind:>10}" + "".join(f"{median(measured[side]):10.1f}" for side in sides)
        loop = measured.get(LOOP)
        line += f"{_paired(measured[OURS], loop):8.3f}" if loop else f"{'':8}"
        if len(sides) > 1:
            each = best_ratios(measured)
            line += f"{median(each):8.3f}  {_quartiles(each)}"
        lines.append(line)
    return lines


def _paired(ours: Sequence[float], other: Sequence[float]) -> float:
    return median(a / b for a, b in zip(ours, other, strict=True))


def _quartiles(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    low, _, high = quantiles(values, n=4)
    return f"{low:.3f} - {high:.3f}"


def summary(rates: Rates, duties: Mapping[str, float | None]) -> dict[str, Any]:
    """The bench's last line."""
    found: dict[str, Any] = dict(ratios(rates))
    means = [value for value in found.values() if value is not None]
    found["ratio_mean"] = round(geometric_mean(means), 3) if means else None
    found |= {name: None if v is None else round(v, 4) for name, v in duties.items()}
    found |= {kind: round(median(sides[OURS]), 1) for kind, sides in rates.items()}
    found["peers"] = {
        side: {kind: round(median(sides[side]), 1) for kind, sides in rates.items()}
        for side in peers_of(rates)
    }
    return found
