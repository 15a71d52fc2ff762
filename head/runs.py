"""Running answers: the parts that act on what nodes say and on what clients stop, put together.

The tokens that come back are head/token_intake.py. A generation that fails is no end of its answer:
see head/failover.py. What a node still has after its link was lost is settled by head/reconcile.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bus.blob_sender import BlobSource
from bus.head_session import HeadSession
from bus.ids import Epoch, ModelName, NodeIdentity, SessionId, WorkerIncarnation, pack_ids
from bus.messages.link import LeaseGrant, LeaseRenew, NodeConfirm, Refused, SessionRevoke
from bus.messages.link_parking import SessionParked
from bus.timers import Timers
from head.acks import AckDesk
from head.answers import QUEUED, RUNNING, Answer
from head.blobs import BlobDesk
from head.book import AnswerBook
from head.drains import Drains
from head.effects import LinkKey
from head.failover import Failover
from head.fleet import Fleet
from head.fleet_node import Node
from head.generations import Generations
from head.jobs import JobDesk
from head.made_sessions import MadeSessions
from head.numbers import Numbers
from head.outages import Outages
from head.outbox import Outbox
from head.parking import ParkingDesk
from head.reconcile import Reconciler
from head.rows import StoredAnswer
from head.sessions import Placed, Sessions
from head.texts import TextDesk
from head.token_intake import TokenIntake
from head.waiting import WaitingLine, WaitingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """How the head runs generations. Times in seconds."""

    waiting: WaitingPolicy = WaitingPolicy()
    lease_s: float = 20.0
    #: Past a request's wall budget the head waits this long for the node's own `expired`.
    grace_s: float = 30.0
    #: Sessions of a lost link wait so long for it to come back before they move.
    reattach_s: float = 0.5
    #: After a restart of the head the sessions that were placed wait so long for their nodes.
    adopt_s: float = 5.0
    #: An answer that lost its node waits so long for one that can take it.
    failover_wait_s: float = 30.0
    #: A session without a turn for so long is given up by its node; the head keeps it.
    idle_s: float = 600.0
    #: Bytes a second of files on each link; 0 is no limit.
    link_bytes_per_s: float = 0.0


class Runs:
    """Owned by the core. Hands on what nodes say and what clients stop; owns the parts that act.

    Invariant: `sessions` holds every session with a running answer or a place on a node.
    """

    def __init__(
        self,
        *,
        policy: RunPolicy,
        numbers: Numbers,
        now: float,
        outbox: Outbox,
        book: AnswerBook,
        fleet: Fleet,
        texts: TextDesk,
        files: BlobSource,
        timers: Timers,
    ) -> None:
        self._policy = policy
        self._numbers = numbers
        self._outbox = outbox
        self._book = book
        self._fleet = fleet
        self.sessions = Sessions()
        self.acks = AckDesk(outbox, timers)
        self.blobs = BlobDesk(outbox, files, timers, link_bytes_per_s=policy.link_bytes_per_s)
        self._generations = Generations(
            lease_s=policy.lease_s,
            grace_s=policy.grace_s,
            numbers=numbers,
            outbox=outbox,
            book=book,
            fleet=fleet,
            sessions=self.sessions,
            blobs=self.blobs,
            timers=timers,
            overdue=lambda session, at: self._failover.end(session, "expired", at),
            freed=lambda model, at: self._lane_freed(model, at),
            file_failed=lambda *failure: self._failover.file_failed(*failure),
        )
        self.waiting = WaitingLine(
            policy=policy.waiting,
            now=now,
            outbox=outbox,
            book=book,
            fleet=fleet,
            texts=texts,
            timers=timers,
            start=self._generations.start,
            holder=self._holder,
            context_of=self._context_of,
            set_apart_on=lambda answer: self._failover.avoided(answer),
            failover_wait_s=policy.failover_wait_s,
        )
        self.jobs = JobDesk(
            policy=policy.waiting,
            failover_wait_s=policy.failover_wait_s,
            now=now,
            outbox=outbox,
            fleet=fleet,
            blobs=self.blobs,
            timers=timers,
            next_number=numbers.generations.next,
        )
        self._failover = Failover(
            numbers=numbers,
            outbox=outbox,
            book=book,
            fleet=fleet,
            sessions=self.sessions,
            generations=self._generations,
            waiting=self.waiting,
        )
        self._outages = Outages(
            reattach_s=policy.reattach_s,
            sessions=self.sessions,
            timers=timers,
            give_up=self._failover.give_up,
        )
        self.drains = Drains(
            fleet=fleet,
            sessions=self.sessions,
            generations=self._generations,
            failover=self._failover,
            waiting=self.waiting,
            jobs=self.jobs,
            timers=timers,
        )
        self._reconciler = Reconciler(
            outbox=outbox,
            fleet=fleet,
            sessions=self.sessions,
            generations=self._generations,
            failover=self._failover,
            timers=timers,
            files_on=lambda node: self.made.files_on(node),
        )
        self._intake = TokenIntake(
            outbox=outbox,
            book=book,
            texts=texts,
            acks=self.acks,
            sessions=self.sessions,
            generations=self._generations,
            waiting=self.waiting,
            failover=self._failover,
            timers=timers,
        )
        self.token_events = self._intake.token_events
        self.caught_up = self._intake.caught_up
        self.lost = self._failover.lost
        self.worker_died = self._failover.worker_died
        self.stage_died = self._failover.stage_died
        self.declined = self._failover.declined
        self.need_full = self._failover.need_full
        self.reconciled = self._reconciler.answered
        self.parking = ParkingDesk(
            policy=policy.waiting.placement,
            outbox=outbox,
            fleet=fleet,
            sessions=self.sessions,
            generations=self._generations,
            texts=texts,
            timers=timers,
        )
        self.made = MadeSessions(
            idle_s=policy.idle_s,
            outbox=outbox,
            book=book,
            sessions=self.sessions,
            timers=timers,
            unplace=self._generations.unplace,
            parking=self.parking,
        )
        book.on_end = self._answer_ended

    @property
    def running(self) -> int:
        return len(self._generations.running)

    # --- links --------------------------------------------------------------------------------

    def link_up(self, link: LinkKey, node: Node, confirm: NodeConfirm, now: float) -> None:
        """A node's link is up: reconcile first, then give it work."""
        self.blobs.link_up(link, node.identity, node.incarnation)
        self._reconciler.link_up(link, node, confirm, now)
        self.drains.link_up(node, now)
        self.opened(now)

    def link_down(self, link: LinkKey, node: Node, reason: str, now: float, *, left: bool) -> None:
        """A node's link ended; `left` when it said goodbye."""
        self.acks.drop(link)
        self.parking.link_down(link)
        self._reconciler.link_down(link)
        self.waiting.unsettle(now)
        self._outages.link_down(link, node.identity, reason, now, left=left)
        # What waits for files has not begun there, which is known until they are dropped.
        self.jobs.link_down(link, reason, now, left=left)
        self.blobs.link_down(link)

    def opened(self, now: float) -> None:
        """A node may take now what it could not before."""
        self.waiting.schedule_all(now)
        self.jobs.schedule_all(now)

    def queued(self) -> Mapping[ModelName, int]:
        """How many requests wait for a node, by model."""
        return Counter(self.waiting.counts()) + Counter(self.jobs.counts())

    def blobs_in_use(self) -> set[bytes]:
        """Hashes of the files that unfinished requests name."""
        return self._book.blobs_in_use() | self.jobs.blobs_in_use()

    def restore(self, answer: Answer, stored: StoredAnswer, now: float) -> None:
        """An answer that ran when the head ended: it waits for its node, then moves."""
        if stored.generation is None or stored.node is None:
            raise ValueError("it was placed and has no generation")
        if not 0 <= stored.first_offset <= len(answer.tokens):
            raise ValueError("its generation begins after its last token")
        placed = Placed(
            node=stored.node,
            incarnation=None,
            link=None,
            protocol=HeadSession(stored.session, stored.epoch, self._numbers.commands.next),
            worker=WorkerIncarnation(stored.worker),
            first_offset=stored.first_offset,
            out_of_sight=True,
        )
        session = self._generations.restore(answer, placed, stored.generation, now)
        self._outages.wait_for_node(session, placed, now + self._policy.adopt_s)

    def refused(self, link: LinkKey, message: Refused, now: float) -> None:
        """A node did not apply a command."""
        self.parking.refused(link, message)
        self._failover.refused(link, message, now)

    def parked(self, link: LinkKey, message: SessionParked) -> None:
        """A node has written a session's file, or could not."""
        node = self._fleet.by_link(link)
        if node is not None:
            self.made.parked(node.identity, message)

    def renew(self, link: LinkKey, message: LeaseRenew) -> None:
        """Grant what the head holds there; what it does not hold is revoked."""
        granted = []
        for ref in message.leases:
            if self.sessions.at(link, ref.session, ref.epoch) is not None:
                granted.append(ref)
            else:
                self._outbox.send(link, self._revoke_unknown(ref.session, ref.epoch))
        if granted:
            lease_ms = round(self._policy.lease_s * 1000)
            self._outbox.send(
                link,
                LeaseGrant(sent_at_s=message.sent_at_s, lease_ms=lease_ms, leases=tuple(granted)),
            )

    def _revoke_unknown(self, session: SessionId, epoch: Epoch) -> SessionRevoke:
        return HeadSession(session, epoch, self._numbers.commands.next).revoke("unknown")

    # --- ends ---------------------------------------------------------------------------------

    def cancel(self, answer: Answer, now: float) -> None:
        """End an answer at what it has, wherever it is; the lane is free at once."""
        session = self.sessions.of(answer)
        if answer.stage == QUEUED:
            self.waiting.remove(answer)
            self._book.end(answer, "cancelled", now)
        elif answer.stage == RUNNING and session is not None:
            self._failover.end(session, "cancelled", now)
        else:
            self._book.end(answer, "cancelled", now)

    def _lane_freed(self, model: ModelName, now: float) -> None:
        self.drains.lane_freed(now)
        self.waiting.recheck(model, now)

    def _answer_ended(self, answer: Answer) -> None:
        self.waiting.ended(answer)
        self._failover.answer_ended(answer)
        session = self.sessions.of(answer)
        if session is None:
            return
        if session.made:
            self.made.turn_ended(session, answer)
        else:
            self.sessions.drop(session)

    def _context_of(self, answer: Answer) -> bytes:
        session = self.sessions.of(answer)
        ids = answer.prompt if session is None else session.context.slice()
        return ids + pack_ids(answer.tokens)

    def _holder(self, answer: Answer) -> tuple[NodeIdentity, int] | None:
        session = self.sessions.of(answer)
        if session is None or session.placed is None or session.placed.link is None:
            return None
        return session.placed.node, session.placed.protocol.tokens
