"""Parked sessions on nodes: given up there, with a file of what was computed, and placed again.

    placed ──leave──▶ a file on its node, if it can keep one ──place──▶ placed there or elsewhere

Whether a session is parked is in rows (head/made_sessions.py); a file only saves computing. So
nothing waits for one: a node that can not be reached, or is of a version without files, just has
none, and what a node no longer needs to keep is what the head names to it no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bus.capabilities import PARKING
from bus.errors import NoNode
from bus.ids import CommandId, NodeIdentity
from bus.messages.link import Refused
from bus.messages.link_parking import SessionForget, SessionRestored
from bus.timers import Timers
from head.effects import LinkKey
from head.fleet import Fleet
from head.fleet_node import Node
from head.generations import Generations
from head.outbox import Outbox
from head.placement import place
from head.sessions import Session, Sessions
from head.snapshot import FleetSnapshot, NodeView, PlacementRequest
from head.texts import TextDesk

#: How long a node may take to read a file before whoever waits is told that nothing is reused.
RESTORE_LIMIT_S = 20.0
#: Tokens of the turn that may follow, for the choice of a node.
EXPECTED_TOKENS = 256
_SLOW = "the node has not said what it could use; the next turn finds out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A session has a place again.

    Attributes:
        node: where; empty when it was lost again meanwhile.
        reused: leading tokens of its context that need not be computed again there.
        exact: of them, those that are bit for bit what the node would compute.
        problem: why not all are reused, as far as that is known.
    """

    node: NodeIdentity
    reused: int = 0
    exact: int = 0
    problem: str = ""


#: Told once what came of a place.
Then = Callable[[Resumed], None]


@dataclass(slots=True)
class _Waiting:
    """Who waits to hear what a node could use of a session."""

    session: Session
    then: Then
    timer: int


class ParkingDesk:
    """Owned by the core's runs. Invariant: every `Then` is called once.

    Args:
        policy: the placement policy's name.
    """

    def __init__(
        self,
        *,
        policy: str,
        outbox: Outbox,
        fleet: Fleet,
        sessions: Sessions,
        generations: Generations,
        texts: TextDesk,
        timers: Timers,
    ) -> None:
        self._policy = policy
        self._outbox = outbox
        self._fleet = fleet
        self._sessions = sessions
        self._generations = generations
        self._texts = texts
        self._timers = timers
        self._waiting: dict[tuple[LinkKey, CommandId], _Waiting] = {}

    # --- to and from nodes --------------------------------------------------------------------

    def leave(self, session: Session) -> NodeIdentity:
        """End a session without a turn on its node; gives the node when it may keep a file."""
        placed = session.placed
        node = self._fleet.get(placed.node) if placed is not None else None
        if (
            placed is None
            or placed.link is None
            or not len(session.context)
            or not _keeps_files(node)
        ):
            self._generations.unplace(session, "parked")
            return NodeIdentity("")
        if (append := placed.protocol.append(session.context)) is not None:
            self._outbox.send(placed.link, append)
        self._sessions.unplace(session)
        self._outbox.send(placed.link, placed.protocol.park())
        return placed.node

    def choose(self, session: Session, now: float) -> Node:
        """Where a parked session goes: the node with its file, or another if that can not take it.

        Raises:
            NoNode, ContextLengthExceeded, UnsupportedOnFleet: nowhere, now.
        """
        held = {session.file_on: len(session.context)} if session.file_on else {}
        request = PlacementRequest(
            model=session.model,
            prompt_tokens=len(session.context),
            expected_tokens=EXPECTED_TOKENS,
            tokenizer_digest=self._texts.digest(session.model),
            cached=held,
            lost_node=True,
        )
        snapshot = _for_idle(self._fleet.snapshot(session.model, now))
        placement = place(self._policy, _only(snapshot, session.file_on), request)
        if placement.node is None:
            placement = place(self._policy, snapshot, request)
        node = self._fleet.get(placement.node) if placement.node is not None else None
        if node is not None:
            return node
        why = "; ".join(f"{identity} {reason}" for identity, reason in placement.reasons)
        error = placement.error or NoNode(f"no node can take it now ({why}); try again later")
        raise type(error)(
            f"session {session.id} stays parked: {error.message}",
            details=error.details,
            retry_after_ms=error.retry_after_ms,
        )

    def place(
        self, session: Session, node: Node, file_on: NodeIdentity, then: Then, now: float
    ) -> None:
        """Give a session its place again, and hear what can be reused there.

        Args:
            file_on: the node that may have its file.
        """
        placed = self._generations.place_idle(session, node)
        if file_on != node.identity:
            self.forget(session, file_on)
        if placed.link is None or not len(session.context) or not _keeps_files(node):
            then(Resumed(node=node.identity))
            return
        restore = placed.protocol.restore()
        self._outbox.send(placed.link, restore)
        asked = (placed.link, restore.command)
        timer = self._timers.at(now + RESTORE_LIMIT_S, lambda at: self._heard(asked, problem=_SLOW))
        self._waiting[asked] = _Waiting(session, then, timer)

    def forget(self, session: Session, file_on: NodeIdentity) -> None:
        """Have a node remove a session's file; one that is not there finds out when it is."""
        node = self._fleet.get(file_on) if file_on else None
        if node is not None and node.link is not None and _keeps_files(node):
            forget = SessionForget(session=session.id, model=session.model)
            self._outbox.send(node.link, forget)

    # --- what nodes say -----------------------------------------------------------------------

    def restored(self, link: LinkKey, message: SessionRestored) -> None:
        """A node has read a session's file, or could not use it."""
        reused = (message.tokens, message.exact_tokens)
        self._heard((link, message.command), *reused, problem=message.problem)

    def refused(self, link: LinkKey, message: Refused) -> None:
        """A command was not applied; it may be one that somebody waits for."""
        self._heard((link, message.command), problem=message.message)

    def link_down(self, link: LinkKey) -> None:
        """Nothing more is heard there."""
        for asked in [asked for asked in self._waiting if asked[0] == link]:
            self._heard(asked, problem="the link to the node ended")

    def _heard(
        self,
        asked: tuple[LinkKey, CommandId],
        reused: int = 0,
        exact: int = 0,
        *,
        problem: str = "",
    ) -> None:
        waiting = self._waiting.pop(asked, None)
        if waiting is None:
            return
        self._timers.cancel(waiting.timer)
        placed = waiting.session.placed
        waiting.then(
            Resumed(
                node=placed.node if placed is not None else NodeIdentity(""),
                reused=reused,
                exact=exact,
                problem=problem,
            )
        )


def _keeps_files(node: Node | None) -> bool:
    return node is not None and PARKING in node.capabilities


def _only(snapshot: FleetSnapshot, node: NodeIdentity) -> FleetSnapshot:
    return replace(snapshot, nodes=tuple(view for view in snapshot.nodes if view.identity == node))


def _for_idle(snapshot: FleetSnapshot) -> FleetSnapshot:
    """The fleet as a session without a turn sees it: it takes no lane."""

    def seen(view: NodeView) -> NodeView:
        model = view.serving
        if model is None:
            return view
        in_flight = min(model.in_flight, model.lanes_total)
        return replace(view, serving=replace(model, in_flight=in_flight, of_class=()))

    return replace(snapshot, nodes=tuple(seen(view) for view in snapshot.nodes))
