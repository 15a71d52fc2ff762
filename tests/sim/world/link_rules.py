"""No message is taken twice, out of order, or from another link, direction or channel."""

from __future__ import annotations

from collections import deque

from bus.messages.link import LINK, Goodbye, Heartbeat
from tests.sim.world.record import Violation

#: Links whose queues are remembered, so that a run does not grow.
MAX_LINKS = 64
OTHER = {"head": "node", "node": "head"}


class LinkRules:
    """Compares what one side sent with what the other side took."""

    def __init__(self) -> None:
        #: By link, direction and channel: what was sent and not yet taken.
        self._sent: dict[int, dict[tuple[str, int], deque[object]]] = {}
        self._last_beat: dict[tuple[int, str], int] = {}
        self._beats: set[int] = set()
        #: By side: links that it takes to be up.
        self.up: dict[str, set[int]] = {"head": set(), "node": set()}

    def link_up(self, role: str, link_id: int) -> None:
        if link_id in self.up[role]:
            raise Violation(f"link {link_id:x} came up twice for the {role}")
        self.up[role].add(link_id)

    def sent(self, role: str, link_id: int, message: object) -> None:
        channels = self._sent.get(link_id)
        if channels is None:
            channels = self._sent[link_id] = {}
            while len(self._sent) > MAX_LINKS:
                del self._sent[next(iter(self._sent))]
        if not isinstance(message, Goodbye):
            channels.setdefault((role, LINK.priority(message)), deque()).append(message)

    def accepted(self, role: str, link_id: int, message: object) -> None:
        if link_id not in self.up[role]:
            raise Violation(f"the {role} took {message} on link {link_id:x}, which is not up")
        sender = OTHER[role]
        if isinstance(message, Heartbeat):
            self._beat(sender, link_id, message.loop_lag_ms)
            return
        queue = self._sent.get(link_id, {}).get((sender, LINK.priority(message)))
        expected = queue.popleft() if queue else None
        if expected != message:
            raise Violation(
                f"the {role} took {message} on link {link_id:x}; next to come was {expected}"
            )

    def link_down(self, role: str, link_id: int) -> None:
        self.up[role].discard(link_id)

    def forget(self, role: str) -> None:
        """All processes of a role are gone."""
        self.up[role].clear()

    def _beat(self, sender: str, link_id: int, number: int) -> None:
        """Heartbeats carry numbers of their own (tests/harness)."""
        if number in self._beats or number <= self._last_beat.get((link_id, sender), 0):
            raise Violation(f"heartbeat {number} of the {sender} was taken twice or late")
        self._beats.add(number)
        self._last_beat[link_id, sender] = number
