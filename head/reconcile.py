"""Reconciling: head and node agree on what the node holds, first thing on every new link.

    head: Reconcile pages ──▶ node drops what is not listed
    head ◀── ReconcileAck pages: what it holds, what it will send again
    head ◀── events since the watermark; then life goes on

What the head listed and the node holds goes on as if nothing had been; what it does not hold is
assigned again under a higher epoch. Doing it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bus.ids import Epoch, GenerationId, NodeIdentity, SessionId
from bus.messages.link import NodeConfirm, Reconcile, ReconcileAck
from bus.messages.parts import HeldView, SessionView
from bus.timers import Timers
from head.effects import LinkKey
from head.failover import Failover
from head.fleet import Fleet
from head.fleet_node import Node
from head.generations import Generations
from head.outbox import Outbox
from head.sessions import Placed, Session, Sessions

#: The sessions whose files a node is to keep.
FilesOn = Callable[[Node], Sequence[SessionId]]

#: Sessions of one page; what the message allows.
PAGE_SESSIONS = 1024
#: Pages that an answer may have: what was held and what was dropped, and some to spare.
MAX_PAGES = 256
#: A node that has not answered by then can not be relied on. Far more than a slow disk takes.
ANSWER_LIMIT_S = 120.0


@dataclass(slots=True)
class _Talk:
    """What was said on one link so far."""

    node: NodeIdentity
    #: The epoch and generation that each session had when it was listed.
    listed: dict[SessionId, tuple[Epoch, GenerationId | None]]
    held: dict[SessionId, HeldView] = field(default_factory=dict)
    pages: int = 0
    timer: int | None = None


class Reconciler:
    """Owned by the core's runs. Invariant: one open talk per link at most."""

    def __init__(
        self,
        *,
        outbox: Outbox,
        fleet: Fleet,
        sessions: Sessions,
        generations: Generations,
        failover: Failover,
        timers: Timers,
        files_on: FilesOn = lambda node: (),
    ) -> None:
        self._files_on = files_on
        self._outbox = outbox
        self._fleet = fleet
        self._sessions = sessions
        self._generations = generations
        self._failover = failover
        self._timers = timers
        self._talks: dict[LinkKey, _Talk] = {}

    # --- the head's part ----------------------------------------------------------------------

    def link_up(self, link: LinkKey, node: Node, confirm: NodeConfirm, now: float) -> None:
        """List the node's sessions to it; those that it can not have any more move."""
        held = {(ref.session, ref.epoch) for ref in confirm.held}
        kept: list[SessionView] = []
        gone: list[Session] = []
        talk = _Talk(node.identity, {})
        for session, placed in self._sessions.on(node.identity):
            if _may_be_there(placed, confirm, held):
                self._generations.rejoin(session, placed, node, now)
                kept.append(placed.protocol.view())
                talk.listed[session.id] = (placed.protocol.epoch, placed.protocol.generation)
            else:
                gone.append(session)
        self._talks[link] = talk
        self._send_pages(link, kept, self._files_on(node))
        talk.timer = self._timers.at(now + ANSWER_LIMIT_S, lambda at: self._overdue(link))
        for session in gone:
            self._failover.give_up(session, f"node {node.identity} was started again", now)

    def _send_pages(
        self, link: LinkKey, views: list[SessionView], files: Sequence[SessionId]
    ) -> None:
        most = max(len(views), len(files))
        for page, first in enumerate(range(0, max(most, 1), PAGE_SESSIONS)):
            last = first + PAGE_SESSIONS
            self._outbox.send(
                link,
                Reconcile(
                    page=page,
                    more=last < most,
                    sessions=tuple(views[first:last]),
                    parked=tuple(files[first:last]),
                ),
            )

    def link_down(self, link: LinkKey) -> None:
        """Nothing more is heard of what was asked there."""
        talk = self._talks.pop(link, None)
        if talk is not None:
            self._timers.cancel(talk.timer)

    def _overdue(self, link: LinkKey) -> None:
        if link in self._talks:
            self._outbox.close_link(link, "it did not say which sessions it holds")

    # --- the node's part ----------------------------------------------------------------------

    def answered(self, link: LinkKey, message: ReconcileAck, now: float) -> None:
        """A page of what the node holds; the last one settles every listed session."""
        talk = self._talks.get(link)
        if talk is None or message.page != talk.pages or talk.pages >= MAX_PAGES:
            self._outbox.close_link(link, "it answered what it was not asked about its sessions")
            return
        talk.pages += 1
        for view in message.sessions:
            listed = talk.listed.get(view.session)
            if listed is not None and listed[0] == view.epoch:
                talk.held[view.session] = view
        if message.more:
            return
        self.link_down(link)
        node = self._fleet.get(talk.node)
        gone = []
        for name, (epoch, generation) in talk.listed.items():
            found = self._sessions.at(link, name, epoch)
            # What was started since is known to the node, or it says so itself.
            if found is None or node is None or found[1].protocol.generation != generation:
                continue
            if self._is_gone(*found, talk.held.get(name), node, now):
                gone.append((*found, node))
        self._lost(gone, now)

    def _is_gone(
        self, session: Session, placed: Placed, held: HeldView | None, node: Node, now: float
    ) -> bool:
        """Settle a session; whether the node holds it, and its generation no more."""
        protocol = placed.protocol
        if held is None:
            # It never came there, or has been fenced: its worker's death is another's.
            why = f"node {node.identity} does not hold it any more"
            self._failover.give_up(session, why, now)
            return False
        if not protocol.is_generating:
            protocol.node_has(held.tokens, held.digest)
            return False
        if any(view.generation == protocol.generation for view in held.generations):
            return False
        if protocol.next_seq or _worker(node, session) != placed.worker:
            return True
        protocol.node_has(held.tokens, held.digest)
        self._generations.again(session, placed, now)
        return False

    def _lost(self, gone: Sequence[tuple[Session, Placed, Node]], now: float) -> None:
        """A node does not have these any more; with their worker one may have killed that."""
        died = [
            (session, placed)
            for session, placed, node in gone
            if _worker(node, session) not in (None, placed.worker)
        ]
        self._failover.died_unheard(died, now)
        for session, placed, node in gone:
            why = f"node {node.identity} does not hold it any more"
            if (session, placed) in died:
                why = f"the worker on {node.identity} died while its link was down"
            self._failover.give_up(session, why, now)


def _may_be_there(placed: Placed, confirm: NodeConfirm, held: set[tuple[SessionId, Epoch]]) -> bool:
    """Whether a node that came back may still have a session."""
    if placed.incarnation is not None:
        return placed.incarnation == confirm.incarnation
    # Its incarnation is not kept over a restart of the head, but the node says what it holds.
    return (placed.protocol.session, placed.protocol.epoch) in held


def _worker(node: Node, session: Session) -> int | None:
    """The worker of the session's model there now; None when the node does not serve it."""
    status = node.models.get(session.model)
    return status.worker if status is not None else None
