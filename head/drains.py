"""Nodes that drain: what runs there moves to others, and nothing is ended for it.

    draining ──every stream moved or ended──▶ drained, its agent may stop

A stream moves when another node can take it at once: it goes on there under a higher epoch from
the tokens that are kept, as after a failure, only without a wait. While none can, it stays where
it is and runs on. So does a job that was begun; one whose files are still on their way goes back in
line. Idle sessions lose their place; their next turn is placed elsewhere.
"""

from __future__ import annotations

from bus.ids import NodeIdentity
from bus.timers import Timers
from head.failover import Failover
from head.fleet import Fleet
from head.fleet_node import Node
from head.generations import Generations
from head.jobs import JobDesk
from head.sessions import Session, Sessions
from head.waiting import WaitingLine

#: How soon what could not move is looked at again; a lane that becomes free is used at once.
LOOK_AGAIN_S = 1.0
#: Why a stream stays where it is while all other nodes are full.
_FULL = "the other nodes that could take it are full; it moves when one of them has room"
#: The same of one that has all its tokens.
_ENDS = "it has all its tokens and is about to end"


class Drains:
    """Owned by the core's runs."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        sessions: Sessions,
        generations: Generations,
        failover: Failover,
        waiting: WaitingLine,
        jobs: JobDesk,
        timers: Timers,
    ) -> None:
        self._fleet = fleet
        self._sessions = sessions
        self._generations = generations
        self._failover = failover
        self._waiting = waiting
        self._jobs = jobs
        self._timers = timers
        #: The one timer that looks again, and when it is due.
        self._timer: tuple[int, float] | None = None
        #: By node: why the streams that are left there do not move.
        self._stays: dict[NodeIdentity, str] = {}

    def why_stays(self, identity: NodeIdentity) -> str:
        """Why streams stay on a node that drains, as of the last look; empty when none does."""
        return self._stays.get(identity, "")

    def look(self, now: float) -> None:
        """Move what can be moved off nodes that drain."""
        self._jobs.leave_drained(now)
        self._stays = {
            node.identity: why
            for node in list(self._fleet.nodes)
            if node.up and node.draining and (why := self._empty(node, now))
        }
        if self._stays:
            self._look_at(now + LOOK_AGAIN_S)

    def link_up(self, node: Node, now: float) -> None:
        """A node has come: it may drain itself, or take what can not stay elsewhere."""
        if node.draining or self._stays:
            self.look(now)

    def lane_freed(self, now: float) -> None:
        """A lane became free somewhere: a stream that has to move goes before those that wait."""
        if self._stays:
            self._look_at(now)

    def _look_at(self, at: float) -> None:
        if self._timer is not None:
            if self._timer[1] <= at:
                return
            self._timers.cancel(self._timer[0])

        def look(now: float) -> None:
            self._timer = None
            self.look(now)

        self._timer = (self._timers.at(at, look), at)

    def _empty(self, node: Node, now: float) -> str:
        """Move what can be moved off a node; gives why the rest of it stays."""
        why = ""
        for session, placed in self._sessions.on(node.identity):
            if placed.link is None:
                continue  # Its link was lost, and whether it comes back is not decided.
            if not placed.protocol.is_generating:
                self._generations.unplace(session, "drained")
            else:
                why = self._move(session, node, now) or why
        return why

    def _move(self, session: Session, node: Node, now: float) -> str:
        """Move a running stream; gives why it stays where it is."""
        answer = session.answer
        if answer is None:
            raise ValueError(f"session {session.id} runs without an answer")
        if answer.tokens and not answer.remaining:
            return _ENDS
        placement = self._waiting.where_at_once(answer, now)
        if placement.node is not None:
            why = f"node {node.identity} is drained"
            self._failover.move(session, why, now, to=placement.node)
            return ""
        return placement.error.message if placement.error is not None else _FULL
