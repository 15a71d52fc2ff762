"""What becomes of an answer when its node, link, worker or engine fails: it goes on elsewhere.

    failed ──▶ its place ends ──▶ waits for a node ──▶ epoch + 1, a new generation
      │                             └── failover_wait or the wall budget is over: the error
      ├── nothing remains: `length`
      └── it kills workers: the error

A node that is out of reach is waited for first (head/outages.py). In memory the old epoch is void
at once: nothing of it is looked at any more. On disk the new one replaces it in the transaction
that keeps the new place, before anything of that leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from bus.errors import (
    ERROR_TABLE,
    BlobMissing,
    ConstraintInvalid,
    ConstraintReplayFailed,
    Internal,
    Invalid,
    RequestKillsWorkers,
    SuperfluidError,
)
from bus.ids import Epoch, GenerationId, ModelName, NodeIdentity, SessionId, WorkerIncarnation
from bus.messages.link import Declined, Lost, NeedFull, Refused, WorkerDied
from bus.messages.parts import Finish
from bus.transfer import HASH_MISMATCH
from head.accounts import keep_account
from head.answers import Answer
from head.blame import Blame
from head.book import AnswerBook
from head.effects import LinkKey
from head.fleet import Fleet
from head.generations import Generations
from head.numbers import Numbers
from head.outbox import Outbox
from head.sessions import Placed, Session, Sessions
from head.suspects import SETTLED_AFTER_TOKENS, WorkerName
from head.waiting import WaitingLine

#: A generation that the worker had not begun with when it died.
WORKER_LOST = "worker_lost"
#: Why a node may decline what it can take a moment later: its worker is starting or full, or what
#: it holds of the session is not what the head took it for, which a new epoch settles.
PASSING_CODES = frozenset(
    {
        *("model_not_ready", WORKER_LOST, "worker_behind", "queue_full"),
        *("session_busy", "stale_epoch", "unknown_session", "unknown_epoch", "fenced"),
        *("context_mismatch", "model_not_served"),
    }
)
#: How a node refuses to go on with an answer whose constraint another one took.
REPLAY_CODES = frozenset({ConstraintReplayFailed.code, ConstraintInvalid.code})
#: Ends of answers that their workers lived to see.
WHOLE = frozenset({"stop", "tool_calls", "length"})


class Failover:
    """Owned by the core's runs. Every way a generation can fail comes here."""

    def __init__(
        self,
        *,
        numbers: Numbers,
        outbox: Outbox,
        book: AnswerBook,
        fleet: Fleet,
        sessions: Sessions,
        generations: Generations,
        waiting: WaitingLine,
    ) -> None:
        self._numbers = numbers
        self._outbox = outbox
        self._book = book
        self._fleet = fleet
        self._sessions = sessions
        self._generations = generations
        self._waiting = waiting
        self._blame = Blame(book=book, outbox=outbox, convict=self._convict)
        #: The last worker of each model on each node whose death was looked into.
        self._judged: dict[tuple[NodeIdentity, ModelName], WorkerIncarnation] = {}

    # --- moving and ending --------------------------------------------------------------------

    def move(
        self,
        session: Session,
        why: str,
        now: float,
        *,
        begun: bool = True,
        to: NodeIdentity | None = None,
    ) -> None:
        """The session's generation is over for the head: go on elsewhere, or there anew.

        Args:
            begun: it may have been computed; else it stands as one that was not placed yet.
            to: a node that has room for it; None lets it wait for one.
        """
        answer, placed = session.answer, session.placed
        if answer is None or placed is None:
            return
        if begun:
            answer.moved_from, answer.failure, answer.failed_s = placed.node, why, now
        keep_account(answer, self._outbox)
        if answer.suspicion.guilty:
            self.end(session, "error", now, self._kills_workers(answer, why))
        elif answer.tokens and not answer.remaining:
            self._blame.ended(answer, cleared=False, now=now)
            self.end(session, "length", now)
        else:
            self._generations.release(session, now)
            self._generations.unplace(session, "moved")
            if to is None:
                self._waiting.add(answer, now)
            else:
                self._waiting.place_on(answer, to, now)

    def end(
        self, session: Session, finish: str, now: float, error: SuperfluidError | None = None
    ) -> None:
        """End the answer that runs, and with a plain request its session."""
        answer = session.answer
        if answer is None:
            return
        placed = session.placed
        stop = placed.protocol.cancel() if placed is not None else None
        if placed is not None and placed.link is not None and stop is not None:
            self._outbox.send(placed.link, stop)
        self._generations.release(session, now)
        if not session.made:
            self._generations.unplace(session, finish)
        self._book.end(answer, finish, now, error)

    def give_up(self, session: Session, why: str, now: float) -> None:
        """A place is not to be had any more: a running answer moves, an idle session has none."""
        placed = session.placed
        if placed is not None and placed.protocol.is_generating:
            self.move(session, why, now)
        else:
            self._generations.unplace(session, "not held")

    def answer_ended(self, answer: Answer) -> None:
        """An answer is over, however it ended: those that it was suspected with may go on."""
        if answer.suspicion.seen:
            cleared = answer.finish in WHOLE
            self._blame.ended(answer, cleared=cleared, now=answer.ended_s)
            self._waiting.recheck(answer.model, answer.ended_s)

    def _convict(self, answer: Answer, now: float) -> None:
        """One that waits was found to kill workers."""
        self._waiting.remove(answer)
        error = self._kills_workers(answer, answer.failure)
        self._book.end(answer, "error", now, error)

    def _kills_workers(self, answer: Answer, why: str) -> RequestKillsWorkers:
        offset = len(answer.tokens)
        return RequestKillsWorkers(
            f"two workers died while they ran this request (the last: {why}), so it is not tried "
            f"again; its {offset} tokens are kept; see the workers' logs for what it made them do",
            details={"offset": offset, "session": answer.session},
        )

    # --- what nodes say -----------------------------------------------------------------------

    def lost(self, link: LinkKey, message: Lost, now: float) -> None:
        """A generation is gone there without an end: its worker died, or its lease ran out."""
        found = self._current(link, message.session, message.epoch, message.generation)
        if found is None:
            return
        session, placed = found
        if message.worker:
            self.died_unheard([found], now)
            why = f"the worker on {placed.node} died ({message.reason})"
        else:
            self._rest(session, placed, message.reason, now)
            why = f"{placed.node} gave it up ({message.reason})"
        self.move(session, why, now)

    def worker_died(self, link: LinkKey, message: WorkerDied, now: float) -> None:
        """A node says of a worker that died what it had: nothing else was on it."""
        node = self._fleet.by_link(link)
        if node is not None:
            had = frozenset(message.generations)
            self._look_into(node.identity, message.model, message.worker, had, now, is_all=True)

    def died_unheard(self, ran: Sequence[tuple[Session, Placed]], now: float) -> None:
        """Workers of a node died with these, and no word came of what else they had."""
        workers: dict[tuple[NodeIdentity, ModelName, WorkerIncarnation], set[GenerationId]] = {}
        for session, placed in ran:
            had = workers.setdefault((placed.node, session.model, placed.worker), set())
            if placed.protocol.generation is not None:
                had.add(placed.protocol.generation)
        for (node, model, worker), had in workers.items():
            self._look_into(node, model, worker, had, now, is_all=False)

    def _look_into(
        self,
        node: NodeIdentity,
        model: ModelName,
        worker: WorkerIncarnation,
        had: Set[GenerationId],
        now: float,
        *,
        is_all: bool,
    ) -> None:
        """Look into a worker's death, once: which of the answers on it may be the reason.

        Args:
            had: its generations; all of them with `is_all`.
        """
        if self._judged.get((node, model)) == worker:
            return
        self._judged[node, model] = worker
        self._fleet.worker_lost(node, model, worker, now)
        found = self._generating(node, model, had)
        for _, placed in found:
            # The head may have taken it for one on the worker before.
            placed.worker = worker
        self._suspect((node, worker), found, had, is_all=is_all)

    def stage_died(
        self,
        worker: WorkerName,
        driver: NodeIdentity,
        model: ModelName,
        had: Iterable[GenerationId] | None,
    ) -> None:
        """The worker of a stage died, and with it a chain that another node's worker drove.

        What that one had went through both, and any of it may be the reason.

        Args:
            had: all generations of the chain; None when nobody said which it had beside those that
                the head knows.
        """
        generations = None if had is None else frozenset(had)
        found = self._generating(driver, model, generations)
        is_all = generations is not None
        self._suspect(worker, found, generations or frozenset(), is_all=is_all)

    def _generating(
        self, node: NodeIdentity, model: ModelName, had: Set[GenerationId] | None
    ) -> list[tuple[Session, Placed]]:
        """Of generations on a node those that run, with their answers; all of a model for None."""
        return [
            (session, placed)
            for session, placed in self._sessions.on(node)
            if session.answer is not None
            and placed.protocol.is_generating
            and (session.model == model if had is None else placed.protocol.generation in had)
        ]

    def _suspect(
        self,
        worker: WorkerName,
        found: Iterable[tuple[Session, Placed]],
        had: Set[GenerationId],
        *,
        is_all: bool,
    ) -> None:
        """Suspect the answers that ran on a worker of its death."""
        ran = {
            placed.protocol.generation: (
                answer,
                len(answer.tokens) - placed.first_offset,
                placed.out_of_sight,
            )
            for session, placed in found
            if (answer := session.answer) is not None
        }
        # One whose answer has ended may be the reason.
        unclear = not is_all or not had <= ran.keys()
        self._blame.died(worker, ran.values(), unclear=unclear)

    def made_tokens(self, answer: Answer, placed: Placed, now: float) -> None:
        """Tokens came of one that was suspected: they speak for it, and at last clear it."""
        suspicion = answer.suspicion
        if not suspicion.seen:
            self._blame.cleared(now)
        elif len(answer.tokens) - placed.first_offset < SETTLED_AFTER_TOKENS:
            return
        self._waiting.recheck(answer.model, now)

    def avoided(self, answer: Answer) -> frozenset[NodeIdentity]:
        """The nodes that one that is suspected leaves to others for now."""
        if self._blame.is_to_wait(answer):
            return frozenset(node.identity for node in self._fleet.nodes)
        if answer.suspicion.set_apart:
            return self._generations.set_apart_on(answer.model)
        return frozenset()

    def declined(self, link: LinkKey, message: Declined, now: float) -> None:
        """Nothing was computed: try the other nodes, or this one in a moment."""
        found = self._current(link, message.session, message.epoch, message.generation)
        if found is None:
            return
        session, placed = found
        missing = message.code == BlobMissing.code
        if missing and self._generations.files_again(session, placed, now):
            return
        self._try_elsewhere(session, placed, message.code, message.message or message.code, now)

    def file_failed(
        self, session: Session, placed: Placed, code: str, message: str, now: float
    ) -> None:
        """A file did not reach the node: another may have room; one that is gone here is gone."""
        if code in (BlobMissing.code, HASH_MISMATCH):
            self.end(session, "error", now, BlobMissing(f"{message}; put it again and ask again"))
        else:
            self._try_elsewhere(session, placed, code, message, now)

    def refused(self, link: LinkKey, message: Refused, now: float) -> None:
        """A command was not applied; its session can not go on there under this epoch."""
        try:
            row = self._numbers.above(message.known_epoch)
        except Invalid as error:
            self._outbox.close_link(link, error.message)
            return
        if row is not None:
            self._outbox.persist(row)
        found = self._sessions.at(link, message.session, message.epoch)
        if found is None:
            return
        session, placed = found
        if placed.protocol.is_generating:
            self._try_elsewhere(session, placed, message.code, message.message, now)
        else:
            self._generations.unplace(session, "refused")

    def need_full(self, link: LinkKey, message: NeedFull, now: float) -> None:
        """The node has not what the head took it for: it gets all of the context, once.

        A generation that was asked for on top of it is declined, and comes again.
        """
        found = self._sessions.at(link, message.session, message.epoch)
        if found is None or found[1].protocol.last_append != message.command:
            return
        session, placed = found
        if placed.protocol.last_base == 0:
            self.broke_protocol(session, placed, "had no use for a whole context", now)
            return
        context = session.context_at(placed.first_offset)
        self._outbox.send(link, placed.protocol.append_full(context))

    def engine_error(self, session: Session, placed: Placed, finish: Finish, now: float) -> None:
        """The engine gave an answer up: once it is tried again, elsewhere if there is one."""
        answer = session.answer
        if answer is None:
            return
        message = finish.message or f"the engine on {placed.node} gave no reason"
        answer.suspicion.engine_errors += 1
        if finish.reason == "error" and answer.suspicion.engine_errors == 1:
            self._rest(session, placed, message, now)
            self.move(session, f"the engine on {placed.node} failed ({message})", now)
            return
        if placed.first_offset and finish.error_code in REPLAY_CODES:
            self._replay_refused(session, answer, placed, message, now)
            return
        cls = ERROR_TABLE.get(finish.error_code, Internal)
        details = {"offset": len(answer.tokens)}
        if finish.max:
            details |= {"length": finish.length, "max": finish.max}
        error = cls(message, param=finish.param or None, details=details)
        self.end(session, "error", now, error)

    def _replay_refused(
        self, session: Session, answer: Answer, placed: Placed, message: str, now: float
    ) -> None:
        """The node does not go on with an answer under its constraint: the next one, if any."""
        answer.tried[placed.node] = (placed.incarnation or 0, message)
        if self._waiting.where_at_once(answer, now).error is None:
            why = f"{placed.node} can not go on under its constraint ({message})"
            self.move(session, why, now)
            return
        offset = len(answer.tokens)
        error = ConstraintReplayFailed(
            f"after {offset} tokens the answer had to move, and no node goes on with them under "
            f"its constraint ({placed.node}: {message}); the tokens are kept: attach with session "
            f"{answer.session}, or ask again",
            details={"offset": offset, "session": answer.session},
        )
        self.end(session, "error", now, error)

    def broke_protocol(self, session: Session, placed: Placed, what: str, now: float) -> None:
        """The node sent what it may not: its link is made again, the answer goes on elsewhere."""
        why = f"node {placed.node} {what}"
        if placed.link is not None:
            self._outbox.close_link(placed.link, f"it {what}")
        self._rest(session, placed, why, now)
        self.move(session, why, now)

    def _try_elsewhere(
        self, session: Session, placed: Placed, code: str, why: str, now: float
    ) -> None:
        answer = session.answer
        if answer is None:
            return
        if code in PASSING_CODES:
            self._rest(session, placed, why, now)
        else:
            answer.tried[placed.node] = (placed.incarnation or 0, why)
        begun = bool(answer.tokens) or answer.failed_s is not None
        self.move(session, why, now, begun=begun)

    def _rest(self, session: Session, placed: Placed, why: str, now: float) -> None:
        if session.answer is not None:
            self._waiting.rest(session.answer, placed.node, placed.incarnation or 0, why, now)

    def _current(
        self, link: LinkKey, session: SessionId, epoch: Epoch, generation: int
    ) -> tuple[Session, Placed] | None:
        """The session that a message about a generation is for, when that one runs there."""
        found = self._sessions.at(link, session, epoch)
        if found is None or not found[1].protocol.is_generating:
            return None
        return found if found[1].protocol.generation == generation else None
