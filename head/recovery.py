"""What becomes, at the head's start, of the answers that its store has.

finished ──▶ it can be read
of a store that was put back, not finished ──▶ it ends by name
admitted ──▶ it waits again, once nodes may have joined
placed ──▶ it waits for its node, then moves
"""

from __future__ import annotations

from bus.errors import Invalid, StoreCorrupt, SuperfluidError
from bus.timers import Timers
from head.answers import Answer
from head.book import AnswerBook
from head.put_back import PutBack, lost_since
from head.restore import answer_from
from head.rows import ADMITTED, FINISHED, StoredAnswer
from head.runs import RunPolicy, Runs
from head.tokenizers import TokenizerDesk
from head.unread import UnreadAnswers


class Recovery:
    """Made by the core at its start.

    Args:
        policy: how long nodes are waited for.
        requeue_s: how long one that waited for a node stays out of the line.
    """

    def __init__(
        self,
        *,
        policy: RunPolicy,
        requeue_s: float,
        book: AnswerBook,
        runs: Runs,
        tokenizers: TokenizerDesk,
        put_back: PutBack,
        unread: UnreadAnswers,
        timers: Timers,
    ) -> None:
        self._policy = policy
        self._requeue_s = requeue_s
        self._book = book
        self._runs = runs
        self._tokenizers = tokenizers
        self._put_back = put_back
        self._unread = unread
        self._timers = timers

    def take_up(self, stored: StoredAnswer, now: float) -> None:
        """An answer as it was when the head ended goes on, or ends.

        Raises:
            StoreCorrupt: its row is damaged.
        """
        try:
            answer = answer_from(stored, self._book, now)
            self._book.add(answer)
            self._runs.made.restore_turn(answer, stored.context_tokens)
            if stored.state != FINISHED:
                self._go_on(answer, stored, now)
        except (ValueError, TypeError, KeyError, Invalid) as damage:
            raise StoreCorrupt(
                f"answer {stored.answer} in the head's store can not be read ({damage}); put a "
                "copy of the store in its place, or move it away to begin with an empty one"
            ) from None
        self._unread.reader_gone(answer, now)

    def _go_on(self, answer: Answer, stored: StoredAnswer, now: float) -> None:
        # What is still to come is looked through for stops, too.
        policy = self._policy
        self._tokenizers.expect(answer.model, now + policy.adopt_s + policy.failover_wait_s)
        if self._put_back.is_of_copy(answer.id):
            self._book.end(answer, "error", now, lost_since())
        elif stored.state == ADMITTED:
            self._requeue(answer, now)
        else:
            self._runs.restore(answer, stored, now)

    def _requeue(self, answer: Answer, now: float) -> None:
        """An answer that waited when the head ended waits again, once nodes may have joined."""

        def later(at: float) -> None:
            if answer.ended:
                return
            try:
                self._runs.waiting.add(answer, at)
            except SuperfluidError as error:
                self._book.end(answer, "error", at, error)

        self._timers.at(now + self._requeue_s, later)
