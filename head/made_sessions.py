"""Sessions that clients make: a context of their own, turn after turn.

    create ──append──▶ idle ──generate──▶ busy ──its answer ends──▶ idle ──finish──▶ ended
    fork ──────────────▶│└─append─┘         (its tokens join the context)
                        └──park──▶ parked ──resume──▶ idle

The context is kept in rows, so it is there after a restart of the head; what a node has of it is
only a copy. Between turns the session stays placed on its node, so that the next turn sends only
what is new; after `idle_s` without one, or when the node leaves, the place is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bus.context import TokenContext
from bus.errors import CursorAhead, Invalid, NotFound, RateLimited
from bus.ids import ModelName, NodeIdentity, PackedIds, SessionId, count_ids, pack_ids
from bus.messages.link_parking import SessionParked
from bus.timers import Timers
from head.answers import Answer
from head.book import AnswerBook
from head.fleet_node import Node
from head.outbox import Outbox
from head.parking import ParkingDesk, Then
from head.rows import EndSession, PurgeSessions, PutParked, PutSession, StoredSession
from head.session_contents import SessionContents
from head.sessions import Session, Sessions

#: Sessions that may be kept.
MAX_SESSIONS = 16_384

#: Takes a session's place away: session, reason.
Unplace = Callable[[Session, str], None]


class MadeSessions:
    """Owned by the core's runs. Invariant: exactly the sessions here have `made` set.

    Args:
        idle_s: how long a session without a turn keeps its place.
        unplace: ends a session on its node.
        parking: parks sessions on nodes and places them again.
    """

    def __init__(
        self,
        *,
        idle_s: float,
        outbox: Outbox,
        book: AnswerBook,
        sessions: Sessions,
        timers: Timers,
        unplace: Unplace,
        parking: ParkingDesk,
    ) -> None:
        self._idle_s = idle_s
        self._outbox = outbox
        self._book = book
        self._sessions = sessions
        self._timers = timers
        self._unplace = unplace
        self._parking = parking
        self._made: dict[SessionId, Session] = {}
        self._contents = SessionContents(outbox)

    def __len__(self) -> int:
        return len(self._made)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._made.values())

    # --- what clients do ----------------------------------------------------------------------

    def create(
        self, session: SessionId, owner: str, model: ModelName, qos: int, now: float
    ) -> Session:
        """A new session without tokens.

        Raises:
            RateLimited: there are as many as may be.
        """
        return self._make(session, owner, model, qos, TokenContext(), None, now)

    def fork(self, parent: Session, session: SessionId, tokens: int, now: float) -> Session:
        """A new session with a copy of the first `tokens` tokens of another's context.

        Raises:
            SessionBusy: a turn of the other runs, or text for it is being tokenized.
            CursorAhead: it has not so many tokens.
            RateLimited: there are as many sessions, or tokens, as may be.
        """
        parent.check_idle()
        if tokens > len(parent.context):
            have = len(parent.context)
            raise CursorAhead(
                f"offset {tokens} is above the {have} tokens of session {parent.id}; fork at {have}"
                " or below",
                param="offset",
                details={"offset": tokens, "have": have},
            )
        context = TokenContext()
        context.append(parent.context.slice(0, tokens), parent.context.slice_segments(0, tokens))
        self._contents.check_all(tokens)
        made = self._make(session, parent.owner, parent.model, parent.qos, context, parent.id, now)
        made.tokenizer_digest = parent.tokenizer_digest
        self._contents.keep_copied(made)
        return made

    def _make(
        self,
        session: SessionId,
        owner: str,
        model: ModelName,
        qos: int,
        context: TokenContext,
        parent: SessionId | None,
        now: float,
    ) -> Session:
        if len(self._made) >= MAX_SESSIONS:
            raise RateLimited(
                f"{len(self._made)} sessions are kept, which is all this head holds; finish some",
                retry_after_ms=1000,
            )
        made = Session(
            id=session,
            model=model,
            context=context,
            made=True,
            owner=owner,
            qos=qos,
            created_s=now,
            parent=parent,
        )
        self._add(made)
        self._outbox.persist(
            PutSession(
                session=session,
                owner=owner,
                model=model,
                qos=qos,
                created_wall_s=self._book.wall(now),
                parent=parent,
            )
        )
        return made

    def find(self, owner: str, session: SessionId) -> Session:
        """A session of its owner.

        Raises:
            NotFound: there is none, or it is another's.
        """
        found = self._made.get(session)
        if found is None and self._book.by_session(owner, session) is not None:
            raise NotFound(
                f"{session} is of one answer; only sessions that were made (session.create) take "
                "further turns; read the answer with attach",
                param="session",
            )
        if found is None or found.owner != owner:
            raise NotFound(
                f"there is no session {session}; it may have been purged after its end",
                param="session",
            )
        return found

    def find_idle(self, owner: str, session: SessionId) -> Session:
        """A session that can take tokens or a turn now.

        Raises:
            NotFound: there is none, or it is another's.
            SessionBusy: a turn runs, or tokens are being appended.
            Parked: it is parked.
            Invalid: it has ended.
        """
        found = self.find(owner, session)
        found.check_takes()
        found.check_idle()
        return found

    def append(self, session: Session, ids: PackedIds) -> None:
        """Add tokens to a session's context, to be computed by chunk.

        Raises:
            ContextLengthExceeded: it would be longer than a context may be.
            RateLimited: all sessions together have as many tokens as may be kept.
        """
        self._contents.check_room(session, count_ids(ids))
        self._contents.extend(session, ids)

    def begin_turn(self, session: Session, answer: Answer, *, joins: bool = False) -> None:
        """An answer goes on from the session's context.

        Args:
            joins: messages join the context before, which may be empty now.

        Raises:
            Invalid: the context has no tokens.
        """
        if not len(session.context) and not joins:
            raise Invalid(
                f"session {session.id} has no tokens yet; append some first", param="session"
            )
        session.answer = answer
        answer.is_turn = True
        answer.prompt_tokens = len(session.context)
        self._timers.cancel(session.idle_timer)

    def join(self, session: Session, answer: Answer, ids: PackedIds) -> None:
        """The messages of a turn join the context that its answer goes on from.

        Raises:
            ContextLengthExceeded, RateLimited: as for `append`.
        """
        answer.joined_at = len(session.context)
        self.append(session, ids)
        answer.prompt_tokens = len(session.context)

    def park(self, session: Session) -> None:
        """Free its node; nothing is taken for it until it is resumed. Its turn must have ended.

        Raises:
            Invalid: it has ended.
        """
        session.check_open()
        if session.parked:
            return
        self._timers.cancel(session.idle_timer)
        session.parked = True
        session.file_on = self._parking.leave(session)
        self._outbox.persist(PutParked(session=session.id, parked=True, file_on=session.file_on))

    def resume(self, session: Session, then: Then, now: float) -> None:
        """Place a parked session again, maybe elsewhere. One that no node can take stays parked.

        Args:
            then: told where it is and what is reused there.

        Raises:
            Invalid: it is not parked, or has ended.
            NoNode, ContextLengthExceeded, UnsupportedOnFleet: no node can take it now.
        """
        session.check_open()
        if not session.parked:
            raise Invalid(
                f"session {session.id} is not parked, so there is nothing to resume; append to it "
                "or generate at once",
                param="session",
            )
        node = self._parking.choose(session, now)
        file_on = self._unpark(session)
        self._outbox.persist(PutParked(session=session.id, parked=False))
        self._parking.place(session, node, file_on, then, now)
        self._rest(session, now)

    def _unpark(self, session: Session) -> NodeIdentity:
        """It is parked no more; gives where its file may be."""
        session.parked = False
        file_on, session.file_on = session.file_on, NodeIdentity("")
        return file_on

    def finish(self, session: Session, now: float) -> None:
        """No more turns; it stays readable until it is purged. Its turn must have ended."""
        if session.ended_s is not None:
            return
        session.ended_s = now
        self._timers.cancel(session.idle_timer)
        self._unplace(session, "finished")
        self._parking.forget(session, self._unpark(session))
        self._outbox.persist(EndSession(session=session.id, ended_wall_s=self._book.wall(now)))

    # --- what happens to them -----------------------------------------------------------------

    def turn_ended(self, session: Session, answer: Answer) -> None:
        """An answer ended: what was delivered of it joins the context.

        One that failed without a token takes its messages along: they can be sent again.
        """
        session.answer = None
        if answer.error is not None and not answer.tokens and answer.joined_at is not None:
            self._contents.cut(session, answer.joined_at)
        if answer.keep_output and answer.tokens:
            self._contents.extend(session, pack_ids(answer.tokens), answer.id)
        self._rest(session, answer.ended_s)

    def _rest(self, session: Session, since_s: float) -> None:
        """It has a place and no turn: after a while it is given up."""
        self._timers.cancel(session.idle_timer)
        due = since_s + self._idle_s
        session.idle_timer = self._timers.at(due, lambda at: self._unplace(session, "idle"))

    def files_on(self, node: Node) -> list[SessionId]:
        """The sessions whose files a node is to keep."""
        return [made.id for made in self if made.file_on == node.identity]

    def parked(self, node: NodeIdentity, message: SessionParked) -> None:
        """A node has written a session's file, or could not: then it is not asked for."""
        session = self._made.get(message.session)
        if session is not None and session.file_on == node and not message.tokens:
            session.file_on = NodeIdentity("")
            self._outbox.persist(PutParked(session=session.id, parked=True))

    def restore(self, stored: Iterable[StoredSession]) -> None:
        """Take up the sessions of the time before a restart.

        Raises:
            ValueError: their tokens are damaged.
        """
        for one in stored:
            made = Session(
                id=one.session,
                model=one.model,
                context=TokenContext(),
                made=True,
                owner=one.owner,
                qos=one.qos,
                created_s=self._book.from_wall(one.created_wall_s),
                ended_s=self._book.from_wall(one.ended_wall_s) if one.ended_wall_s else None,
                parked=one.parked and not one.ended_wall_s,
                file_on=one.file_on if not one.ended_wall_s else NodeIdentity(""),
                parent=one.parent,
            )
            self._contents.load(made, one.contents)
            self._add(made)

    def restore_turn(self, answer: Answer, context_tokens: int) -> None:
        """An answer of the time before a restart was a turn of its session.

        Raises:
            ValueError: the session's context is not what the turn began with.
        """
        session = self._made.get(answer.session)
        if session is None:
            return
        answer.is_turn = True
        answer.prompt_tokens = context_tokens
        # Stores of before tokens were kept with their tokenizer's digest have it of turns only.
        session.tokenizer_digest = session.tokenizer_digest or answer.tokenizer_digest
        if answer.ended:
            return
        if len(session.context) != context_tokens:
            raise ValueError(f"its session has {len(session.context)} tokens")
        session.answer = answer

    def purge(self, ended_before_s: float) -> None:
        """Forget sessions that ended before a time."""
        old = [
            session
            for session in self._made.values()
            if session.ended_s is not None and session.ended_s <= ended_before_s
        ]
        for session in old:
            del self._made[session.id]
            self._contents.remove(session)
            self._sessions.drop(session)
        if old:
            self._outbox.persist(PurgeSessions(sessions=tuple(session.id for session in old)))

    def _add(self, session: Session) -> None:
        self._made[session.id] = session
        self._contents.add(session)
        self._sessions.add(session)
