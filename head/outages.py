"""Sessions whose node is out of reach: they wait for it for a moment, then their places are gone.

link down, or a restart of the head ──▶ waits ──its time is over──▶ the place is given up
                                          └── the node is back: head/reconcile.py
"""

from __future__ import annotations

from collections.abc import Callable

from bus.ids import Epoch, NodeIdentity, SessionId
from bus.timers import Timers
from head.effects import LinkKey
from head.sessions import Placed, Session, Sessions

#: Gives up a session's place: session, why, now.
GiveUp = Callable[[Session, str, float], None]


class Outages:
    """Owned by the core's runs.

    Args:
        reattach_s: how long the sessions of a lost link wait for it to come back.
        give_up: ends the wait of a session whose node did not.
    """

    def __init__(
        self, *, reattach_s: float, sessions: Sessions, timers: Timers, give_up: GiveUp
    ) -> None:
        self._reattach_s = reattach_s
        self._sessions = sessions
        self._timers = timers
        self._give_up_place = give_up
        #: How often each node's link was lost: a wait is for the end of one outage only.
        self._outages: dict[NodeIdentity, int] = {}

    def link_down(
        self, link: LinkKey, node: NodeIdentity, reason: str, now: float, *, left: bool
    ) -> None:
        """The sessions of a link wait for its node for a moment; none after a goodbye."""
        lost = []
        self._outages[node] = self._outages.get(node, 0) + 1
        for session, placed in self._sessions.on(node):
            if placed.link == link:
                placed.link, placed.out_of_sight = None, True
                lost.append((session.id, placed.protocol.epoch))
        why = f"the link to node {node} ended ({reason})"
        if left:
            self._give_up(lost, why, now)
        elif lost:
            self._give_up_at(now + self._reattach_s, node, lost, why)

    def wait_for_node(self, session: Session, placed: Placed, until: float) -> None:
        """A session of the time before a restart moves when its node is not here by then."""
        lost = [(session.id, placed.protocol.epoch)]
        why = f"the head was restarted and node {placed.node} did not come back"
        self._give_up_at(until, placed.node, lost, why)

    def _give_up_at(
        self, due: float, node: NodeIdentity, lost: list[tuple[SessionId, Epoch]], why: str
    ) -> None:
        outage = self._outages.get(node)

        def give_up(at: float) -> None:
            # A node that came back meanwhile and was lost again has its whole time anew.
            if self._outages.get(node) == outage:
                self._give_up(lost, why, at)

        self._timers.at(due, give_up)

    def _give_up(self, lost: list[tuple[SessionId, Epoch]], why: str, now: float) -> None:
        for name, epoch in lost:
            found = self._sessions.at(None, name, epoch)
            if found is not None:
                self._give_up_place(found[0], why, now)
