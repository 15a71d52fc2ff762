"""Token buckets: how often something may happen, without a clock of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class TokenBucket:
    """`burst` at once, then `rate` a second."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at: float | None = None

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + self._rate * max(0.0, now - self._at))
        self._at = now

    def available(self, now: float) -> bool:
        self._refill(now)
        return self._tokens >= 1.0

    def take(self, now: float) -> bool:
        """Use one up; False when there is none."""
        if not self.available(now):
            return False
        self._tokens -= 1.0
        return True


class KeyedBuckets:
    """One bucket per key, the least recently used forgotten above `most` keys."""

    def __init__(self, rate: float, burst: float, *, most: int = 4096) -> None:
        self._rate = rate
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def bucket(self, key: Hashable) -> TokenBucket:
        found = self._buckets.pop(key, None) or TokenBucket(self._rate, self._burst)
        self._buckets[key] = found
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return found
