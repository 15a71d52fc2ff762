"""Counters of several groups of lanes as one worker's. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from bus.messages.worker import WorkerStats

#: What counts up since the start; the rest holds now.
_COUNTERS = ("steps", "decode_tokens", "prefill_tokens", "cached_tokens", "preemptions")
_HELD = ("lanes_used", "queued", "kv_live_tokens", "kv_host_bytes")


def sum_stats(stats: Iterable[WorkerStats]) -> WorkerStats:
    """All together but for times and the phase, which are no sums."""
    listed = list(stats)
    names = (*_COUNTERS, *_HELD)
    return WorkerStats(**{name: sum(getattr(one, name) for one in listed) for name in names})


def counters_of(stats: WorkerStats) -> WorkerStats:
    """What stays of groups that are gone."""
    return WorkerStats(**{name: getattr(stats, name) for name in _COUNTERS})
