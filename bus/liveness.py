"""When to speak so that the peer knows we live, and when to take its silence for its end."""

from __future__ import annotations


class Liveness:
    """The two timers of a link that is up; times are `now` seconds of one clock.

    Args:
        now: when the link came up.
        heartbeat_s: between our heartbeats, whatever else is sent: they tell what was sent before.
        busy_heartbeat_s: the same while a generation is live.
        silence_s: the longest silence of the peer; 0 is no limit.
        first_share: the first heartbeat comes after this share of the interval (0.5 to 1), drawn
            per link, so that links which came up together do not beat together.
    """

    def __init__(
        self,
        now: float,
        *,
        heartbeat_s: float,
        busy_heartbeat_s: float,
        silence_s: float,
        first_share: float = 1.0,
    ) -> None:
        self._idle_s = heartbeat_s
        self._busy_s = busy_heartbeat_s
        self._silence_s = silence_s
        self._busy = False
        self._beat_at = now - (1.0 - first_share) * self.interval_s
        self._heard_at = now
        self._probe = 0
        self._answered = 0
        #: Its silence was laid to ourselves, and nothing was heard of it since.
        self.forgiven = False

    def set_busy(self, busy: bool) -> None:
        self._busy = busy

    def beat(self, now: float) -> None:
        """A heartbeat went out, or had to wait for its turn."""
        self._beat_at = max(self._beat_at, now)

    def heard(self, now: float) -> None:
        """A frame of the peer verified."""
        self._heard_at = max(self._heard_at, now)
        self.forgiven = False

    def restart(self, now: float) -> None:
        """Count the peer's silence from now on."""
        self._heard_at = max(self._heard_at, now)

    def forgive(self, now: float) -> None:
        """The same, and remember it."""
        if not self.forgiven:
            self.forgiven = True
            self.restart(now)

    def next_probe(self) -> int:
        """The number of a new probe; an answer to an older one counts for nothing."""
        self._probe += 1
        return self._probe

    def answered(self, number: int) -> None:
        """The peer answered a probe."""
        self._answered = number

    @property
    def probe_answered(self) -> bool:
        """Whether the peer answered the last probe."""
        return self._answered == self._probe

    @property
    def interval_s(self) -> float:
        """How long we may be silent: three chances to be heard before the peer's limit."""
        interval = self._busy_s if self._busy else self._idle_s
        return min(interval, self._silence_s / 3) if self._silence_s else interval

    @property
    def heartbeat_at(self) -> float:
        return self._beat_at + self.interval_s

    @property
    def lost_at(self) -> float | None:
        return self._heard_at + self._silence_s if self._silence_s else None

    def heartbeat_due(self, now: float) -> bool:
        return now >= self.heartbeat_at

    def lost(self, now: float) -> bool:
        return self.lost_at is not None and now >= self.lost_at

    def nearly_lost(self, now: float) -> bool:
        """Whether the peer's last heartbeat before its limit is missing too."""
        margin_s = min(self._idle_s, self._silence_s / 3)
        return self.lost_at is not None and now >= self.lost_at - margin_s

    def next_timeout(self) -> float:
        """When to look again."""
        lost_at = self.lost_at
        return self.heartbeat_at if lost_at is None else min(self.heartbeat_at, lost_at)
