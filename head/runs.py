"""Running answers: the tokens that come back, how they end, and what the head's core drives.

A generation that fails is no end of its answer: see head/failover.py. What a node still has after
its link was lost is settled by head/reconcile.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.blob_sender import BlobSource
from bus.head_session import HeadSession, Receipt, Verdict
from bus.ids import (
    Epoch,
    ModelName,
    NodeIdentity,
    SessionId,
    WorkerIncarnation,
    count_ids,
    pack_ids,
    unpack_ids,
)
from bus.messages.link import (
    LeaseGrant,
    LeaseRenew,
    NodeConfirm,
    Refused,
    SessionRevoke,
    TokenEvents,
)
from bus.messages.link_parking import SessionParked
from bus.messages.parts import Finish, TokenRun
from bus.timers import Timers
from head.accounts import keep_account
from head.acks import AckDesk
from head.answers import FINISH_NAMES, QUEUED, RUNNING, Answer, until_stop
from head.blobs import BlobDesk
from head.book import AnswerBook
from head.drains import Drains
from head.effects import LinkKey
from head.failover import Failover
from head.fleet import Fleet
from head.fleet_node import Node
from head.generations import Generations
from head.made_sessions import MadeSessions
from head.numbers import Numbers
from head.outbox import Outbox
from head.parking import ParkingDesk
from head.reconcile import Reconciler
from head.rows import MarkSent, PutTokens, StoredAnswer
from head.sessions import Placed, Session, Sessions
from head.texts import TextDesk
from head.waiting import WaitingLine, WaitingPolicy

#: A stream is acknowledged at once when it passes a multiple of this: a quarter of the window.
ACK_EVERY_EVENTS = 256


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


class Runs:
    """Owned by the core. Takes what nodes say and what clients stop; owns the parts that act on it.

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
        self._texts = texts
        self.sessions = Sessions()
        self.acks = AckDesk(outbox, timers)
        self.blobs = BlobDesk(outbox, files, timers)
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
            set_apart_on=self._generations.set_apart_on,
            failover_wait_s=policy.failover_wait_s,
        )
        self._failover = Failover(
            reattach_s=policy.reattach_s,
            numbers=numbers,
            outbox=outbox,
            book=book,
            fleet=fleet,
            sessions=self.sessions,
            generations=self._generations,
            waiting=self.waiting,
            timers=timers,
        )
        self.drains = Drains(
            fleet=fleet,
            sessions=self.sessions,
            generations=self._generations,
            failover=self._failover,
            waiting=self.waiting,
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
        self.lost = self._failover.lost
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
        self.waiting.schedule_all(now)

    def link_down(self, link: LinkKey, node: Node, reason: str, now: float, *, left: bool) -> None:
        """A node's link ended; `left` when it said goodbye."""
        self.acks.drop(link)
        self.blobs.link_down(link)
        self.parking.link_down(link)
        self._reconciler.link_down(link)
        self.waiting.unsettle(now)
        self._failover.link_down(link, node.identity, reason, now, left=left)

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
        )
        session = self._generations.restore(answer, placed, stored.generation, now)
        self._failover.wait_for_node(session, placed, now + self._policy.adopt_s)

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

    # --- tokens -------------------------------------------------------------------------------

    def token_events(self, link: LinkKey, events: TokenEvents, now: float) -> None:
        for run in events.runs:
            self._token_run(link, run, now)
        self.acks.message_ended(link)

    def _token_run(self, link: LinkKey, run: TokenRun, now: float) -> None:
        session = self._generations.running.get(run.generation)
        if session is None:
            # Of an answer that is over, or moved on: the node need not keep it.
            end = run.first_seq + count_ids(run.ids) + (run.finish is not None)
            if self.acks.note_stray(link, run.generation, end, now) and run.finish is not None:
                self.acks.owe(link)
            return
        answer, placed = session.answer, session.placed
        if answer is None or placed is None or placed.link != link:
            return
        protocol = placed.protocol
        before = protocol.next_seq
        receipt = protocol.accept(run)
        if receipt.verdict is Verdict.STALE:
            return
        if receipt.verdict is Verdict.GAP:
            self._failover.broke_protocol(session, placed, "left out tokens of an answer", now)
            return
        if (what := self._fault(answer, run, receipt)) is not None:
            self._failover.broke_protocol(session, placed, what, now)
            return
        crossed = protocol.next_seq // ACK_EVERY_EVENTS != before // ACK_EVERY_EVENTS
        urgent = crossed or receipt.finish is not None
        if receipt.finish is not None or not answer.is_held_back:
            self.acks.note(link, run.generation, protocol.next_seq, now, urgent=urgent)
        if receipt.verdict is Verdict.FRESH:
            self._take(session, answer, placed, receipt, now)

    def caught_up(self, answer: Answer, now: float) -> None:
        """A reader of an answer took more, or went away: its node need not wait for it now.

        A node is held back by what is not acknowledged to it: it fills its window, and pauses.
        """
        session = self.sessions.of(answer) if answer.pause_when_slow else None
        placed = session.placed if session is not None else None
        if placed is None or placed.link is None or answer.is_held_back:
            return
        protocol = placed.protocol
        if protocol.is_generating and protocol.generation is not None:
            self.acks.note(placed.link, protocol.generation, protocol.next_seq, now, urgent=True)

    def _take(
        self, session: Session, answer: Answer, placed: Placed, receipt: Receipt, now: float
    ) -> None:
        """Keep what a run brought, up to the first stop string, and end the answer at its end."""
        kept, stop = until_stop(answer, receipt.ids, self._texts)
        self._count(answer, placed, receipt)
        self._take_tokens(session, answer, placed, receipt.first(kept), now)
        if receipt.finish is not None:
            self.waiting.finished(answer, receipt.finish.usage.cached_tokens)
        finish = receipt.finish
        # What ran out of time with the very token that ends it has run out of time first.
        expired = finish is not None and finish.reason == "expired"
        if stop and not (expired and kept == count_ids(receipt.ids)):
            answer.stop = stop
            self._failover.end(session, "stop", now)
        elif finish is not None:
            self._finished(session, answer, placed, finish, now)
        else:
            self._book.pump(answer)

    @staticmethod
    def _count(answer: Answer, placed: Placed, receipt: Receipt) -> None:
        """Count what its node computed and found before the first token of a generation."""
        if receipt.first_seq == 0 and receipt.ids and answer.is_replaying:
            context = answer.prompt_tokens + placed.first_offset
            answer.replayed_tokens += max(context - receipt.cached, 0)
            answer.is_replaying = False
        elif receipt.first_seq == 0 and receipt.cached:
            answer.cached_tokens = min(receipt.cached, answer.prompt_tokens)
        elif receipt.finish is not None and not placed.first_offset and not answer.cached_tokens:
            # A node of an older version says it at the end only.
            cached = receipt.finish.usage.cached_tokens
            answer.cached_tokens = min(cached, answer.prompt_tokens)

    def _fault(self, answer: Answer, run: TokenRun, receipt: Receipt) -> str | None:
        """What is wrong with a run of an answer's generation, to be said of its node."""
        if count_ids(receipt.ids) > answer.remaining:
            return "made more tokens than were asked for"
        size = self._texts.vocabulary_size(answer.model, answer.tokenizer_digest)
        if size and receipt.ids and (highest := max(unpack_ids(receipt.ids))) >= size:
            return f"made token id {highest}; {answer.model} has ids 0 to {size - 1}"
        if len(run.logprobs) != answer.sampling.record_bytes * count_ids(run.ids):
            return "sent other log-probabilities than were asked for"
        return None

    def _take_tokens(
        self, session: Session, answer: Answer, placed: Placed, receipt: Receipt, now: float
    ) -> None:
        generation, ids = placed.protocol.generation, receipt.ids
        if not ids or generation is None:
            return
        offset = len(answer.tokens)
        answer.first_token_s = answer.first_token_s or now
        self._failover.went_on(session, placed)
        if offset == placed.first_offset:
            self._outbox.persist(MarkSent(answer=answer.id))
            self.waiting.began(answer)
            if answer.suspicion.set_apart:
                self.waiting.recheck(session.model, now)
        answer.tokens.extend(unpack_ids(ids))
        answer.logprobs += receipt.logprobs
        self._outbox.persist(
            PutTokens(
                answer=answer.id,
                generation=generation,
                offset=offset,
                ids=ids,
                logprobs=receipt.logprobs,
                used_ms=answer.budget_used_ms(now),
            )
        )
        answer.progress(len(answer.tokens) - placed.first_offset)
        if offset == placed.first_offset or answer.account is not None:
            keep_account(answer, self._outbox)

    def _finished(
        self, session: Session, answer: Answer, placed: Placed, finish: Finish, now: float
    ) -> None:
        name = FINISH_NAMES.get(finish.reason)
        if name is None:
            self._book.pump(answer)
            self._failover.engine_error(session, placed, finish, now)
        else:
            if answer.sampling.stop and answer.reader is None:
                # Without the tokenizer the node's word is all there is.
                answer.stop = finish.stop
            self._failover.end(session, name, now)

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
