"""The answers that are suspected of killing workers: who waits for whom, and who ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from head.accounts import keep_account
from head.answers import QUEUED, RUNNING, Answer
from head.book import AnswerBook
from head.outbox import Outbox
from head.suspects import (
    Suspect,
    Suspicion,
    WorkerName,
    blame,
    explain,
    judge,
    leave_unclear,
    waits_for,
)

#: Ends an answer that waits and was found to kill workers.
Convict = Callable[[Answer, float], None]


class Blame:
    """Owned by the failover. What it changes of answers it keeps."""

    def __init__(self, *, book: AnswerBook, outbox: Outbox, convict: Convict) -> None:
        self._book = book
        self._outbox = outbox
        self._convict = convict
        #: Every answer that is suspected, and maybe some that are not any more. None: look for
        #: those that the store gave.
        self._suspects: dict[int, Answer] | None = None

    def _suspected(self) -> list[Answer]:
        """The answers that are suspected of a death and have not ended."""
        known = self._book if self._suspects is None else self._suspects.values()
        found = [one for one in known if one.suspicion.seen and not one.ended]
        self._suspects = {one.id: one for one in found}
        return found

    def died(
        self, worker: WorkerName, ran: Iterable[tuple[Answer, int, bool]], *, unclear: bool
    ) -> None:
        """A worker died.

        One of whose death an earlier start of the head had heard has all its suspects.

        Args:
            ran: the answers on it, with how many of their tokens came from it, and whether it may
                have made more.
            unclear: it may have had generations of answers that are over.
        """
        if any(one.suspicion.of(worker) is not None for one in self._suspected()):
            return
        found = list(ran)
        there = [answer for answer, _, _ in found]
        suspects = [Suspect(answer.suspicion, tokens, unseen) for answer, tokens, unseen in found]
        blame(suspects, worker, unclear=unclear)
        suspected = {one.id: one for one in self._suspected()}
        self._suspects = suspected | {answer.id: answer for answer in there}
        everyone = [one.suspicion for one in self._suspected()]
        judge((answer.suspicion for answer in there), everyone)
        for answer in there:
            keep_account(answer, self._outbox)

    def cleared(self, now: float) -> None:
        """One is suspected of less: what it shared may now be certain of another that waits."""
        suspected = self._suspected()
        waiting = [one for one in suspected if one.stage == QUEUED]
        judge((one.suspicion for one in waiting), [one.suspicion for one in suspected])
        for one in waiting:
            if one.suspicion.guilty and not one.ended:
                self._convict(one, now)

    def ended(self, answer: Answer, *, cleared: bool, now: float) -> None:
        """An answer ends; `cleared` when its worker had no trouble with it up to there."""
        mine = answer.suspicion
        if not mine.seen:
            return
        others = [one for one in self._suspected() if one is not answer]
        if mine.guilty:
            explain(mine, self._suspicions(others))
        elif not cleared:
            leave_unclear(mine, self._suspicions(others))
        mine.clear()
        for one in others:
            keep_account(one, self._outbox)
        self.cleared(now)

    @staticmethod
    def _suspicions(answers: Iterable[Answer]) -> list[Suspicion]:
        return [one.suspicion for one in answers]

    def is_to_wait(self, answer: Answer) -> bool:
        """Whether others of a death that it is suspected of are to be cleared before it goes on.

        It waits for none that stands still, as behind a slow reader or more urgent requests.
        """
        mine = answer.suspicion
        return bool(mine.seen) and any(
            _goes_on(other, answer) and waits_for(mine, other.suspicion)
            for other in self._suspected()
        )


def _goes_on(other: Answer, answer: Answer) -> bool:
    if other.stage == RUNNING:
        return not (other.is_held_back and other.suspicion.is_unseen)
    return other.stage == QUEUED and other.qos <= answer.qos
