"""Whether a silence is the peers' or our own: the links of one process ask each other.

When most of a fleet falls silent at once, our own network or machine is the likelier reason, so
their silence limits begin anew, once. When our own loop stood still, no silence means anything.
A closed connection is no silence; its link ends at once.
"""

from __future__ import annotations

from bus.liveness import Liveness

#: Fewer links than this say nothing about us.
MIN_LINKS = 4
#: A timer this late: the loop stood still (suspended, stopped, starved).
GAP_S = 5.0


class SelfSuspicion:
    """Shared by all links of one process, whichever side dialed."""

    def __init__(self) -> None:
        self._links: dict[Liveness, None] = {}

    def add(self, liveness: Liveness) -> None:
        """A link is up."""
        self._links[liveness] = None

    def remove(self, liveness: Liveness) -> None:
        """It ended."""
        self._links.pop(liveness, None)

    def stood_still(self, due: float | None, now: float) -> bool:
        """Whether a timer that was due at `due` is so late that all silences begin anew."""
        if due is None or now - due <= GAP_S:
            return False
        for liveness in self._links:
            liveness.restart(now)
        return True

    def forgives(self, liveness: Liveness, now: float) -> bool:
        """Whether a link that is silent for too long stays, since most others are silent too.

        True once; a link that is heard again may be forgiven again.
        """
        if liveness.forgiven:
            return False
        silent = [link for link in self._links if link.nearly_lost(now)]
        if len(self._links) < MIN_LINKS or 2 * len(silent) <= len(self._links):
            return False
        for link in silent:
            link.forgive(now)
        return True
