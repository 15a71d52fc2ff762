"""Generations: on a node, the tokens that come back, and every way they end.

Recovery is not here yet: a generation whose worker, node or link is lost ends its answer with
`node_lost` and the offset reached; its tokens stay readable by cursor.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.errors import ERROR_TABLE, Internal, NodeLost
from bus.head_session import GenerationPlan, HeadSession, Verdict
from bus.ids import (
    BootCounter,
    Epoch,
    GenerationId,
    ModelName,
    NodeIdentity,
    PackedIds,
    SessionId,
    count_ids,
    unpack_ids,
)
from bus.messages.api import PlacedEvent
from bus.messages.link import (
    Declined,
    Finish,
    LeaseGrant,
    LeaseRenew,
    Lost,
    NeedFull,
    Refused,
    SessionRevoke,
    TokenEvents,
    TokenRun,
)
from bus.timers import Timers
from head.acks import AckDesk
from head.answers import FINISH_NAMES, QUEUED, RUNNING, Answer
from head.book import AnswerBook
from head.effects import LinkKey
from head.fleet import Fleet
from head.outbox import Outbox
from head.rows import MarkSent, PutGeneration, PutTokens
from head.texts import TextDesk
from head.waiting import WaitingLine, WaitingPolicy

#: A stream is acknowledged at once when it passes a multiple of this: a quarter of the window.
ACK_EVERY_EVENTS = 256
#: Why a node may decline what it can take a moment later: its worker is starting or full.
PASSING_CODES = frozenset({"model_not_ready", "worker_lost", "worker_behind", "queue_full"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """How the head runs generations. Times in seconds."""

    waiting: WaitingPolicy = WaitingPolicy()
    lease_s: float = 20.0
    #: Past a request's wall budget the head waits this long for the node's own `expired`.
    grace_s: float = 30.0


class Runs:
    """Owned by the core. Invariant: exactly the answers in stage RUNNING have a generation here."""

    def __init__(
        self,
        *,
        policy: RunPolicy,
        boot: int,
        now: float,
        outbox: Outbox,
        book: AnswerBook,
        fleet: Fleet,
        texts: TextDesk,
        timers: Timers,
    ) -> None:
        self._policy = policy
        self._outbox = outbox
        self._book = book
        self._fleet = fleet
        self._timers = timers
        self._epochs = BootCounter(boot)
        self._generations = BootCounter(boot)
        self._commands = BootCounter(boot)
        self._running: dict[GenerationId, Answer] = {}
        self.acks = AckDesk(outbox, timers)
        self.waiting = WaitingLine(
            policy=policy.waiting,
            now=now,
            outbox=outbox,
            book=book,
            fleet=fleet,
            texts=texts,
            timers=timers,
            start=self._start,
        )

    @property
    def running(self) -> int:
        return len(self._running)

    # --- start --------------------------------------------------------------------------------

    def _start(self, answer: Answer, identity: NodeIdentity, now: float) -> None:
        node = self._fleet.get(identity)
        if node is None or node.link is None:
            raise ValueError(f"placed on {identity}, which has no link")
        generation = GenerationId(self._generations.next())
        epoch = Epoch(self._epochs.next())
        session = HeadSession(answer.session, answer.model, epoch, self._commands.next)
        status = node.models[answer.model]
        self._book.store(answer)
        self._outbox.persist(
            PutGeneration(
                generation=generation,
                answer=answer.id,
                session=answer.session,
                epoch=epoch,
                node=identity,
                worker=status.worker,
                numerics=status.numerics,
                first_offset=len(answer.tokens),
            )
        )
        self._fleet.claim(identity, answer.model, generation, now)
        answer.stage = RUNNING
        answer.node = identity
        answer.placed_s = now
        answer.session_link = (node.link, session)
        self._running[generation] = answer
        lease_ms = round(self._policy.lease_s * 1000)
        opening = session.open(answer.prompt, (), lease_ms=lease_ms, qos=answer.qos)
        self._outbox.send(
            node.link, *opening, session.generate(self._plan(answer, generation, now))
        )
        self._watch_budget(answer, generation, now)
        event = PlacedEvent(node=identity, session=answer.session)
        for subscription in answer.subscriptions:
            self._outbox.reply(subscription.event(event))

    def _plan(self, answer: Answer, generation: GenerationId, now: float) -> GenerationPlan:
        spent_ms = (now - answer.accepted_s) * 1000
        return GenerationPlan(
            generation=generation,
            sampling=answer.sampling,
            max_new_tokens=answer.max_new,
            prompt_tokens=len(answer.prompt) // 4,
            generated_tokens=0,
            wall_ms=max(round(answer.wall_ms - spent_ms), 1) if answer.wall_ms else 0,
            exact=answer.exact,
        )

    def _watch_budget(self, answer: Answer, generation: GenerationId, now: float) -> None:
        if not answer.wall_ms:
            return

        def give_up(at: float) -> None:
            if self._running.get(generation) is answer:
                self._leave(answer, "expired", at)
                self._book.end(answer, "expired", at)

        due = answer.accepted_s + answer.wall_ms / 1000 + self._policy.grace_s
        answer.budget_timer = self._timers.at(max(due, now), give_up)

    # --- what nodes say -----------------------------------------------------------------------

    def token_events(self, link: LinkKey, events: TokenEvents, now: float) -> None:
        for run in events.runs:
            self._token_run(link, run, now)

    def _token_run(self, link: LinkKey, run: TokenRun, now: float) -> None:
        answer = self._running.get(run.generation)
        if answer is None or answer.session_link is None or answer.session_link[0] != link:
            end = run.first_seq + count_ids(run.ids) + (run.finish is not None)
            self.acks.note(link, run.generation, end, now, urgent=run.finish is not None)
            return
        session = answer.session_link[1]
        before = session.next_seq
        receipt = session.accept(run)
        if receipt.verdict is Verdict.GAP:
            self._lose(answer, f"node {answer.node} left out tokens of the answer", now)
            return
        fresh = receipt.verdict is Verdict.FRESH
        if fresh and len(answer.tokens) + count_ids(receipt.ids) > answer.max_new:
            self._lose(answer, f"node {answer.node} made more tokens than were asked for", now)
            self._outbox.close_link(link, "it made more tokens than were asked for")
            return
        if receipt.verdict is not Verdict.STALE:
            crossed = session.next_seq // ACK_EVERY_EVENTS != before // ACK_EVERY_EVENTS
            urgent = crossed or receipt.finish is not None
            self.acks.note(link, run.generation, session.next_seq, now, urgent=urgent)
        if fresh:
            self._take_tokens(answer, run.generation, receipt.ids, now)
            if receipt.finish is not None:
                self._finished(answer, receipt.finish, now)
            else:
                self._book.pump(answer)

    def _take_tokens(
        self, answer: Answer, generation: GenerationId, ids: PackedIds, now: float
    ) -> None:
        if not ids:
            return
        offset = len(answer.tokens)
        fresh = unpack_ids(ids)
        if not offset:
            answer.first_token_s = now
            self._outbox.persist(MarkSent(answer=answer.id))
        answer.tokens.extend(fresh)
        self._outbox.persist(
            PutTokens(answer=answer.id, generation=generation, offset=offset, ids=ids)
        )

    def _finished(self, answer: Answer, finish: Finish, now: float) -> None:
        answer.cached_tokens = min(finish.usage.cached_tokens, answer.prompt_tokens)
        self._leave(answer, "finished", now)
        name = FINISH_NAMES.get(finish.reason)
        if name is not None:
            self._book.end(answer, name, now)
            return
        cls = ERROR_TABLE.get(finish.error_code, Internal)
        message = finish.message or f"the engine on {answer.node} gave no reason"
        details = {"offset": len(answer.tokens)}
        if finish.max:
            details |= {"length": finish.length, "max": finish.max}
        error = cls(message, param=finish.param or None, details=details)
        self._book.end(answer, "error", now, error)

    def lost(self, link: LinkKey, message: Lost, now: float) -> None:
        answer = self._current(link, message.generation, message.epoch)
        if answer is not None:
            node = answer.node
            what = f"the worker on {node} died" if message.worker else f"{node} gave it up"
            self._lose(answer, f"{what} ({message.reason})", now)

    def declined(self, link: LinkKey, message: Declined, now: float) -> None:
        """Nothing was computed: try the other nodes, or say why none takes it."""
        answer = self._current(link, message.generation, message.epoch)
        if answer is not None:
            self._try_elsewhere(answer, message.code, message.message or message.code, now)

    def refused(self, link: LinkKey, message: Refused, now: float) -> None:
        """A command was not applied; its session can not run there under this epoch."""
        for answer in list(self._running.values()):
            if answer.session_link is None or answer.session_link[0] != link:
                continue
            session = answer.session_link[1]
            if (session.session, session.epoch) == (message.session, message.epoch):
                self._try_elsewhere(answer, message.code, message.message or message.code, now)

    def need_full(self, link: LinkKey, message: NeedFull) -> None:
        for answer in self._running.values():
            if answer.session_link is None or answer.session_link[0] != link:
                continue
            session = answer.session_link[1]
            if (session.session, session.epoch) == (message.session, message.epoch):
                self._outbox.send(link, session.append_full())

    def _try_elsewhere(self, answer: Answer, code: str, why: str, now: float) -> None:
        if code in PASSING_CODES:
            self.waiting.rest(answer, answer.node, why, now)
        else:
            answer.declined[answer.node] = why
        self._leave(answer, "declined", now)
        if answer.tokens:
            self._book.end(answer, "error", now, self._node_lost(answer, why))
        else:
            self.waiting.add(answer, now)

    def renew(self, link: LinkKey, message: LeaseRenew) -> None:
        """Grant what the head holds there; what it does not hold is revoked."""
        held = {
            (session.session, session.epoch)
            for answer in self._running.values()
            if answer.session_link is not None
            for on, session in (answer.session_link,)
            if on == link
        }
        granted = tuple(ref for ref in message.leases if (ref.session, ref.epoch) in held)
        if granted:
            lease_ms = round(self._policy.lease_s * 1000)
            self._outbox.send(
                link,
                LeaseGrant(sent_at_s=message.sent_at_s, lease_ms=lease_ms, leases=granted),
            )
        for ref in message.leases:
            if (ref.session, ref.epoch) not in held:
                self._outbox.send(link, self._revoke_unknown(ref.session, ref.epoch))

    def link_down(self, link: LinkKey, node: NodeIdentity, reason: str, now: float) -> None:
        self.acks.drop(link)
        self.waiting.unsettle(now)
        for answer in list(self._running.values()):
            if answer.session_link is not None and answer.session_link[0] == link:
                self._lose(answer, f"the link to node {node} ended ({reason})", now)

    # --- ends ---------------------------------------------------------------------------------

    def cancel(self, answer: Answer, now: float) -> None:
        """End an answer at what it has, wherever it is; the lane is free at once."""
        if answer.stage == QUEUED:
            self.waiting.remove(answer)
        elif answer.session_link is not None:
            link, session = answer.session_link
            stop = session.cancel()
            if stop is not None:
                self._outbox.send(link, stop)
            self._leave(answer, "cancelled", now)
        self._book.end(answer, "cancelled", now)

    def _lose(self, answer: Answer, what: str, now: float) -> None:
        self._leave(answer, "lost", now)
        self._book.end(answer, "error", now, self._node_lost(answer, what))

    def _node_lost(self, answer: Answer, what: str) -> NodeLost:
        offset = len(answer.tokens)
        return NodeLost(
            f"{what} after {offset} tokens of the answer; they are kept: attach with session "
            f"{answer.session}, or ask again",
            details={"offset": offset, "session": answer.session},
        )

    def _leave(self, answer: Answer, reason: str, now: float) -> None:
        """Take an answer off its node: revoke the session, free the slot, place others."""
        if answer.session_link is None:
            return
        link, session = answer.session_link
        answer.session_link = None
        self._timers.cancel(answer.budget_timer)
        if session.generation is not None:
            self._running.pop(session.generation, None)
            self._fleet.release(answer.node, session.generation)
        if self._fleet.by_link(link) is not None:
            self._outbox.send(link, session.revoke(reason))
        self.waiting.recheck(answer.model, now)

    def _current(self, link: LinkKey, generation: GenerationId, epoch: Epoch) -> Answer | None:
        answer = self._running.get(generation)
        if answer is None or answer.session_link is None:
            return None
        on, session = answer.session_link
        return answer if on == link and session.epoch == epoch else None

    def _revoke_unknown(self, session: SessionId, epoch: Epoch) -> SessionRevoke:
        return HeadSession(session, ModelName(""), epoch, self._commands.next).revoke("unknown")
