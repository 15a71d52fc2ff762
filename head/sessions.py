"""Sessions: what is placed on nodes. Every answer runs in one.

    queued ──start──▶ placed on a link ──link down──▶ placed, waiting for its node ──▶ queued
                        ▲                                   │
                        └────────── link up, reconciled ────┘

A plain request is a session of one answer that ends with it. A *made* session (`session.create`)
has several turns; between them it stays placed, idle. Its context is the truth, and what the node
has of it is only what the head last knew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bus.context import TokenContext
from bus.errors import Invalid, Parked, SessionBusy, TokenizerUnavailable
from bus.head_session import HeadSession
from bus.ids import Epoch, ModelName, NodeIdentity, SessionId, WorkerIncarnation, pack_ids
from bus.messages.parts import Segment
from head.answers import Answer
from head.effects import LinkKey


@dataclass(slots=True, kw_only=True)
class Placed:
    """A session's place.

    Invariant: `link` is the node's present link, or None while the head waits for the node.
    """

    node: NodeIdentity
    #: Of the node; None when the head restarted since and the node has not come back.
    incarnation: int | None
    link: LinkKey | None
    protocol: HeadSession
    #: Of the generation: the model's worker, its numerics id, and the answer's offset it began at.
    worker: WorkerIncarnation = WorkerIncarnation(0)
    numerics: str = ""
    first_offset: int = 0
    #: Its node may have made tokens that nobody here saw: its link, or the head, was away since the
    #: last that came.
    out_of_sight: bool = False


@dataclass(slots=True, kw_only=True)
class Session:
    """One conversation or job.

    Invariants: `context` has no token of `answer`; `answer` is the one that waits or runs.
    """

    id: SessionId
    model: ModelName
    context: TokenContext
    answer: Answer | None = None
    placed: Placed | None = None
    #: Of a session that a client made (head/made_sessions.py).
    made: bool = False
    owner: str = ""
    qos: int = 0
    created_s: float = 0.0
    #: Text for it is being tokenized.
    appending: bool = False
    ended_s: float | None = None
    idle_timer: int | None = None
    #: It has no place and takes nothing until it is resumed.
    parked: bool = False
    #: The node that may have a file of it; empty for none.
    file_on: NodeIdentity = NodeIdentity("")
    #: The session that its first tokens were taken from.
    parent: SessionId | None = None
    #: Of the tokenizer that its tokens are of; 0 while it is not known.
    tokenizer_digest: int = 0

    def check_open(self) -> None:
        """See that it has not ended.

        Raises:
            Invalid: it has.
        """
        if self.ended_s is not None:
            raise Invalid(f"session {self.id} has ended; create another", param="session")

    def check_takes(self) -> None:
        """See that it may be given tokens or a turn, when it has no turn.

        Raises:
            Parked: it is parked.
            Invalid: it has ended.
        """
        self.check_open()
        if self.parked:
            raise Parked(
                f"session {self.id} is parked; resume it first: sfctl session resume {self.id}",
                param="session",
            )

    def check_idle(self) -> None:
        """See that nothing is being done with it.

        Raises:
            SessionBusy: a turn runs, or text for it is being tokenized.
        """
        if self.answer is not None or self.appending:
            what = "runs a turn" if self.answer is not None else "is being appended to"
            raise SessionBusy(
                f"session {self.id} {what}; wait for its end, or cancel it first", param="session"
            )

    def goes_by(self, digest: int) -> None:
        """Its next tokens are of the tokenizer with this digest; 0 for unknown.

        Raises:
            TokenizerUnavailable: those that it has are of another one.
        """
        mine = self.tokenizer_digest if len(self.context) else 0
        if digest and mine and digest != mine:
            raise TokenizerUnavailable(
                f"session {self.id} was begun with another tokenizer of {self.model} ({mine:016x}) "
                f"than the head has now ({digest:016x}), so its tokens mean other text; begin a "
                f"new session, or import the file that {self.model} was made of before",
                param="session",
            )
        self.tokenizer_digest = digest or mine

    def context_at(self, offset: int) -> TokenContext:
        """The context with `offset` tokens of the answer, as they are computed: step by step.

        Args:
            offset: where a generation began; a later turn's answer may have fewer tokens.
        """
        offset = min(offset, len(self.answer.tokens)) if self.answer is not None else 0
        if self.answer is None or not offset:
            return self.context
        whole = TokenContext()
        whole.append(self.context.slice(), self.context.segments)
        ids = pack_ids(self.answer.tokens[:offset])
        whole.append(ids, (Segment(tokens=offset, by_step=True),))
        return whole


def state_of(session: Session) -> str:
    """What people are told: the stage of its answer, or `idle`, `parked` or `ended`."""
    if session.answer is not None:
        return session.answer.stage
    if session.ended_s is not None:
        return "ended"
    return "parked" if session.parked else "idle"


class Sessions:
    """All sessions that are placed or made. Owned by the core.

    Invariant: `on(node)` are exactly those with a place on it.
    """

    def __init__(self) -> None:
        self._sessions: dict[SessionId, Session] = {}
        self._on_node: dict[NodeIdentity, dict[SessionId, Session]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def add(self, session: Session) -> None:
        self._sessions[session.id] = session

    def get(self, session: SessionId) -> Session | None:
        return self._sessions.get(session)

    def of(self, answer: Answer) -> Session | None:
        """The session that an answer waits or runs in."""
        found = self._sessions.get(answer.session)
        return found if found is not None and found.answer is answer else None

    def drop(self, session: Session) -> None:
        """Forget a session that is over."""
        self.unplace(session)
        self._sessions.pop(session.id, None)

    def place(self, session: Session, placed: Placed) -> None:
        """Give a session its place; a former one ends."""
        self.unplace(session)
        session.placed = placed
        self._on_node.setdefault(placed.node, {})[session.id] = session

    def unplace(self, session: Session) -> Placed | None:
        """Take its place away; gives what it was."""
        placed, session.placed = session.placed, None
        if placed is not None:
            there = self._on_node[placed.node]
            del there[session.id]
            if not there:
                del self._on_node[placed.node]
        return placed

    def on(self, node: NodeIdentity) -> list[tuple[Session, Placed]]:
        """The sessions placed on a node, with a link or waiting for it."""
        there = self._on_node.get(node, {}).values()
        return [(session, session.placed) for session in there if session.placed is not None]

    def at(
        self, link: LinkKey | None, session: SessionId, epoch: Epoch
    ) -> tuple[Session, Placed] | None:
        """A session that is placed on this link under this epoch; None for any other.

        Args:
            link: None finds one that waits for its node.
        """
        found = self._sessions.get(session)
        if found is None or found.placed is None:
            return None
        placed = found.placed
        if placed.link != link or placed.protocol.epoch != epoch:
            return None
        return found, placed
