"""How long a connecting side waits before it shakes hands again, after a link's end.

Full jitter: each wait is drawn from 0 to a bound that doubles, so that a thousand nodes whose head
comes back do not call in the same moment. A link that broke by a fault of the transport (a gap, a
Stale) is made again at once, since sessions wait for it; but only a few times in a row.
"""

from __future__ import annotations

import random

from bus.rate_limit import TokenBucket

#: Bounds of the random wait: the first, doubling to the last.
FIRST_S = 0.25
MAX_S = 5.0
#: A link that was up for so long makes the next wait a first one.
STEADY_S = 10.0
#: Ends that say nothing against a new link at once; so many in a row, then one in 10 s.
AT_ONCE_CODES = frozenset({"gap", "auth", "decode", "stale", "counter", "rekey"})
AT_ONCE_BURST = 3.0
AT_ONCE_PER_S = 0.1


class Backoff:
    """The waits of one connecting side.

    Args:
        rng: draws them.
        limit_s: how long the peer lets a connection be silent; no wait is longer than half of it.
    """

    def __init__(self, rng: random.Random, limit_s: float = 2 * MAX_S) -> None:
        self._rng = rng
        self._longest_s = min(MAX_S, limit_s / 2)
        self._bound_s = FIRST_S
        self._up_since: float | None = None
        self._at_once = TokenBucket(AT_ONCE_PER_S, AT_ONCE_BURST)

    def up(self, now: float) -> None:
        """A link is up."""
        self._up_since = now

    def ended(self, now: float, code: str = "") -> float:
        """A link or a connection ended; when to shake hands again.

        Args:
            now: seconds.
            code: of the link's end; empty when none was up.
        """
        if self._up_since is not None and now - self._up_since >= STEADY_S:
            self._bound_s = FIRST_S
        self._up_since = None
        if code in AT_ONCE_CODES and self._at_once.take(now):
            return now
        wait_s = self._rng.uniform(0.0, min(self._longest_s, self._bound_s))
        self._bound_s = min(MAX_S, 2 * self._bound_s)
        return now + wait_s
