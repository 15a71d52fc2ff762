"""How many bytes of bulk may be on their way on one link: what keeps it busy, and little more.

That is what it carries in its own delay and 10 ms, so a heartbeat waits some 10 ms at most, and
never more than in 100 ms.

The link's rate is measured on one chunk after the other, from its sending to the credit for it,
less the link's own delay (the shortest time from a Begin to its first credit). In that time the
link carried the chunk itself and at most what was on its way before it, which bounds the rate from
both sides: exactly when nothing was before it, or when it queued behind all of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bus.transfer import CHUNK_BYTES, MAX_IN_FLIGHT_BYTES

#: The time whose bytes may be on their way at most, and what of it may wait in a queue.
IN_FLIGHT_S = 0.1
QUEUE_S = 0.01
#: At least this share of a chunk's time counts as its transmission, however long the delay.
_LEAST_SHARE = 1 / 32
#: A link that became faster is found out in steps.
_GROWTH = 1.1
_SHORTEST_S = 1e-6


class BulkWindow:
    """One per link, of the sender. Between one chunk and 2 MiB; at most doubled by one measure."""

    def __init__(self) -> None:
        self.size_bytes = CHUNK_BYTES
        self.in_flight_bytes = 0
        self._delay_s = math.inf
        #: Bytes a second; 0 before the first measure.
        self._rate = 0.0
        self._probe: _Probe | None = None

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may go; one chunk always may when nothing is on its way."""
        return not self.in_flight_bytes or self.in_flight_bytes + size <= self.size_bytes

    def answered(self, delay_s: float) -> None:
        """A Begin had its first credit after this time."""
        self._delay_s = min(self._delay_s, delay_s)

    def sent(self, transfer: int, end: int, size: int, now: float) -> None:
        """A chunk goes, which ends at `end` of its blob."""
        if self._probe is None:
            self._probe = _Probe(transfer, end, size, now, self.in_flight_bytes)
        self.in_flight_bytes += size

    def acknowledged(self, transfer: int, offset: int, size: int, now: float) -> None:
        """A credit for `size` bytes more came: the receiver has the blob up to `offset`."""
        self.in_flight_bytes -= size
        probe = self._probe
        if probe is None or probe.transfer != transfer or offset < probe.end:
            return
        self._probe = None
        self._measure(probe, now - probe.sent_at)
        window_s = min(self._delay_s + QUEUE_S, IN_FLIGHT_S)
        fits = min(self._rate * window_s, 2 * self.size_bytes, MAX_IN_FLIGHT_BYTES)
        self.size_bytes = max(CHUNK_BYTES, int(fits))

    def gone(self, transfer: int, size: int) -> None:
        """A transfer ended with so many bytes on their way; nobody acknowledges them."""
        self.in_flight_bytes -= size
        if self._probe is not None and self._probe.transfer == transfer:
            self._probe = None

    def _measure(self, probe: _Probe, elapsed_s: float) -> None:
        delay_s = min(self._delay_s, elapsed_s)
        busy_s = max(elapsed_s - delay_s, elapsed_s * _LEAST_SHARE, _SHORTEST_S)
        least, most = probe.size / busy_s, (probe.before + probe.size) / busy_s
        if self._rate and busy_s * self._rate > 2 * probe.size:
            # It queued behind what was before it, so the upper bound is near the truth.
            self._rate = min(most, self._rate * _GROWTH)
        else:
            self._rate = max(least, min(self._rate or most, most))


@dataclass(frozen=True, slots=True)
class _Probe:
    """The chunk that is measured, with the bytes that were on their way before it."""

    transfer: int
    end: int
    size: int
    sent_at: float
    before: int
