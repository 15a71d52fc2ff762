"""Tokens that come back from nodes: what is taken of them, kept, acknowledged, and how they end.

A run of tokens is of the generation that runs now, and goes on where the last one ended, or nothing
of it is taken (bus/head_session.py). What is taken is kept in the same round as the readers get it.
"""

from __future__ import annotations

from bus.head_session import Receipt, Verdict
from bus.ids import count_ids, unpack_ids
from bus.messages.link import TokenEvents
from bus.messages.parts import Finish, TokenRun
from bus.timers import Timers
from head.accounts import keep_account
from head.acks import AckDesk
from head.answer_readers import model_ended, until_stop
from head.answers import FINISH_NAMES, Answer
from head.book import AnswerBook
from head.effects import LinkKey
from head.failover import Failover
from head.generations import Generations
from head.outbox import Outbox
from head.rows import MarkSent, PutTokens
from head.sessions import Placed, Session, Sessions
from head.texts import TextDesk
from head.waiting import WaitingLine

#: A stream is acknowledged at once when it passes a multiple of this: a quarter of the window.
ACK_EVERY_EVENTS = 256
#: A node pauses for readers who take nothing for so long; then it makes what was asked for, and its
#: lane is free for others.
HOLD_LIMIT_S = 300.0
#: Ends that a model comes to by itself, for which its whole context was computed.
ENDS_BY_MODEL = frozenset({"eos", "stop"})


class TokenIntake:
    """Owned by the core's runs."""

    def __init__(
        self,
        *,
        outbox: Outbox,
        book: AnswerBook,
        texts: TextDesk,
        acks: AckDesk,
        sessions: Sessions,
        generations: Generations,
        waiting: WaitingLine,
        failover: Failover,
        timers: Timers,
    ) -> None:
        self._outbox = outbox
        self._book = book
        self._texts = texts
        self._acks = acks
        self._sessions = sessions
        self._generations = generations
        self._waiting = waiting
        self._failover = failover
        self._timers = timers

    def token_events(self, link: LinkKey, events: TokenEvents, now: float) -> None:
        """Take what a node's workers made since its last message."""
        for run in events.runs:
            self._token_run(link, run, now)
        self._acks.message_ended(link)

    def _token_run(self, link: LinkKey, run: TokenRun, now: float) -> None:
        session = self._generations.running.get(run.generation)
        if session is None:
            # Of an answer that is over, or moved on: the node need not keep it.
            end = run.first_seq + count_ids(run.ids) + (run.finish is not None)
            if self._acks.note_stray(link, run.generation, end, now) and run.finish is not None:
                self._acks.owe(link)
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
            self._acks.note(link, run.generation, protocol.next_seq, now, urgent=urgent)
        elif answer.hold_timer is None:
            self._hold(answer, now)
        if receipt.verdict is Verdict.FRESH:
            self._take(session, answer, placed, receipt, now)

    def caught_up(self, answer: Answer, now: float) -> None:
        """A reader of an answer took more, or went away: its node need not wait for it now.

        A node is held back by what is not acknowledged to it: it fills its window, and pauses.
        """
        if answer.hold_timer is None:
            return
        self._timers.cancel(answer.hold_timer)
        answer.hold_timer = None
        if answer.is_held_back:
            self._hold(answer, now)
            return
        session = self._sessions.of(answer)
        placed = session.placed if session is not None else None
        if placed is None or placed.link is None:
            return
        protocol = placed.protocol
        if protocol.is_generating and protocol.generation is not None:
            self._acks.note(placed.link, protocol.generation, protocol.next_seq, now, urgent=True)

    def _hold(self, answer: Answer, now: float) -> None:
        answer.hold_timer = self._timers.at(now + HOLD_LIMIT_S, lambda at: self._let_go(answer, at))

    def _let_go(self, answer: Answer, now: float) -> None:
        """Its readers have taken nothing for long: its lane waits for them no more."""
        answer.pause_when_slow = False
        self.caught_up(answer, now)

    def _take(
        self, session: Session, answer: Answer, placed: Placed, receipt: Receipt, now: float
    ) -> None:
        """Keep what a run brought, as far as it belongs to the answer, and end that at its end."""
        kept, is_over = until_stop(answer, receipt.ids, self._texts)
        self._count(answer, placed, receipt)
        self._take_tokens(session, answer, placed, receipt.first(kept), now)
        if receipt.finish is not None:
            self._waiting.finished(answer, receipt.finish.usage.cached_tokens)
        finish = receipt.finish
        # What ran out of time with the very token that ends it has run out of time first.
        expired = finish is not None and finish.reason == "expired"
        if is_over and not (expired and kept == count_ids(receipt.ids)):
            self._failover.end(session, "stop" if answer.stop else "tool_calls", now)
        elif finish is not None:
            answer.stop = ""
            self._finished(session, answer, placed, finish, now)
        else:
            self._book.pump(answer)

    @staticmethod
    def _count(answer: Answer, placed: Placed, receipt: Receipt) -> None:
        """Count what its node computed and found before the first token of a generation."""
        finish = receipt.finish
        if receipt.first_seq == 0 and answer.is_replaying:
            # What ran out of time, or failed, before its first token may have computed nothing.
            if receipt.ids or (finish is not None and finish.reason in ENDS_BY_MODEL):
                context = answer.prompt_tokens + placed.first_offset
                answer.replayed_tokens += max(context - receipt.cached, 0)
                answer.is_replaying = False
        elif receipt.first_seq == 0 and receipt.cached:
            answer.cached_tokens = min(receipt.cached, answer.prompt_tokens)
        elif finish is not None and not placed.first_offset and not answer.cached_tokens:
            # A node of an older version says it at the end only.
            cached = finish.usage.cached_tokens
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
        placed.out_of_sight = False
        if offset == placed.first_offset:
            answer.numerics = placed.numerics or answer.numerics
            self._outbox.persist(MarkSent(answer=answer.id))
            self._waiting.began(answer)
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
        suspected = answer.suspicion.deaths
        answer.progress(len(answer.tokens) - placed.first_offset)
        if offset == placed.first_offset or answer.account is not None:
            keep_account(answer, self._outbox)
        if suspected:
            self._failover.made_tokens(answer, placed, now)

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
            if name == "stop":
                name = model_ended(answer, self._texts)
            self._failover.end(session, name, now)
