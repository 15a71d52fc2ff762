"""Wall budgets: what nodes are given of them, what is kept of them, and when they end an answer.

Time counts from when a request was accepted until its end, but not while there is no head; what was
used is then known up to the last row that says so, and an answer without such a row begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.ids import GenerationId
from bus.messages.link import GenerateReq
from bus.messages.worker import Submit
from head.effects import Effects, Output, Persist, SendLink
from head.rows import PutAnswer, PutFinish, PutGeneration, PutTokens
from tests.sim.world.record import Answer, Record, Violation
from tests.sim.world.verdicts import DRIFT, MOMENT_S

#: A head that is not stopped acts so soon on a timer.
ACT_S = 1.0


@dataclass(slots=True)
class Used:
    """What of a budget was used at one moment: at least and at most, in seconds."""

    least_s: float
    most_s: float
    at_s: float

    def at(self, now: float) -> Used:
        passed_s = now - self.at_s
        return Used(self.least_s + passed_s, self.most_s + passed_s, now)

    def allows(self, used_s: float) -> bool:
        """Whether a clock of the fleet can have counted so much."""
        least_s, most_s = self.least_s * (1 - DRIFT), self.most_s * (1 + DRIFT)
        return least_s - MOMENT_S <= used_s <= most_s + MOMENT_S


class BudgetRules:
    """Args: the record, how long after a budget its node's own `expired` is waited for, and how
    long a head that has begun lets nodes join before it looks at what waits.
    """

    def __init__(self, record: Record, grace_s: float, restart_s: float) -> None:
        self._record = record
        self._grace_s = grace_s
        self._restart_s = restart_s
        #: By answer, of this life of the head and as of the latest durable row that says it.
        self._used: dict[int, Used] = {}
        self._kept: dict[int, Used] = {}
        #: By lsn: when its rows were decided. By output: it, and when it was.
        self._decided_s: dict[int, float] = {}
        self._asked_s: dict[int, tuple[Output, float]] = {}
        #: Answers whose end was decided.
        self._ending: set[int] = set()
        #: By generation: the budgets that its node was given.
        self._given: dict[GenerationId, set[int]] = {}

    def head_started(self, now: float) -> None:
        """What this head knows of budgets is what is durable."""
        self._decided_s.clear()
        self._asked_s.clear()
        self._ending.clear()
        self._used.clear()
        for number, answer in self._record.answers.items():
            if answer.finish is None and answer.plan is not None and answer.plan.wall_ms:
                kept = self._kept.get(number, Used(0.0, 0.0, now))
                self._used[number] = Used(kept.least_s, kept.most_s, now)

    # --- what is decided, and becomes durable -----------------------------------------------------

    def effects(self, effects: Effects, now: float) -> None:
        if effects.persist is not None:
            self._decided_s[effects.persist.lsn] = now
            ends = [row.answer for row in effects.persist.rows if isinstance(row, PutFinish)]
            self._ending.update(ends)
        for tagged in effects.outputs:
            if isinstance(tagged.output, SendLink) and isinstance(
                tagged.output.message, GenerateReq
            ):
                self._asked_s[id(tagged.output)] = (tagged.output, now)

    def committed(self, persist: Persist, now: float) -> None:
        decided_s = self._decided_s.pop(persist.lsn, now)
        for row in persist.rows:
            match row:
                case PutAnswer():
                    self._begin(self._record.answers[row.answer], decided_s)
                case PutGeneration() | PutTokens():
                    self._keep(row, decided_s)
                case PutFinish():
                    self._used.pop(row.answer, None)

    def _begin(self, answer: Answer, decided_s: float) -> None:
        plan = answer.plan
        if plan is not None and plan.wall_ms:
            most_s = decided_s - plan.asked_s
            self._used[answer.row.answer] = Used(0.0, most_s, decided_s)

    def _keep(self, row: PutGeneration | PutTokens, decided_s: float) -> None:
        known = self._used.get(row.answer)
        if known is None:
            if row.used_ms:
                raise Violation(f"answer {row.answer:x} used {row.used_ms} ms of no budget")
            return
        used = self._kept[row.answer] = known.at(decided_s)
        if not used.allows(row.used_ms / 1000):
            raise Violation(
                f"{self._name(row.answer)} is kept as having used {row.used_ms} ms of its budget, "
                f"not {used.least_s:.3f} to {used.most_s:.3f} s"
            )

    # --- what nodes and workers are given ---------------------------------------------------------

    def released(self, output: Output) -> None:
        known, asked_s = self._asked_s.pop(id(output), (None, 0.0))
        if known is output and isinstance(output, SendLink):
            message = output.message
            if isinstance(message, GenerateReq):
                self._check_given(message, asked_s)

    def _check_given(self, message: GenerateReq, asked_s: float) -> None:
        answer = self._record.runs[message.generation].answer
        given, plan = message.wall_ms, answer.plan
        self._given.setdefault(message.generation, set()).add(given)
        known = self._used.get(answer.row.answer)
        if plan is None or answer.finish is not None:
            return
        if not plan.wall_ms or known is None:
            if given:
                raise Violation(f"{plan.name} has no budget, and its node was given {given} ms")
            return
        used = known.at(asked_s)
        # With all of it used a node is given the least there is, and ends it at once.
        is_over = given == 1 and used.most_s * (1 + DRIFT) + MOMENT_S >= plan.wall_ms / 1000
        if given < 1 or not (is_over or used.allows((plan.wall_ms - given) / 1000)):
            raise Violation(
                f"{plan.name} has used {used.least_s:.3f} to {used.most_s:.3f} s of its budget of "
                f"{plan.wall_ms} ms, and its node was given {given} ms"
            )

    def submitted(self, name: str, submit: Submit) -> None:
        given = self._given.get(submit.generation, set())
        if submit.wall_ms not in given:
            raise Violation(f"{name} has {submit.wall_ms} ms for an answer, and was given {given}")

    # --- the end of it ----------------------------------------------------------------------------

    def look(self, now: float, acting_since: float) -> None:
        """No answer goes on for long when its budget is used up.

        Args:
            acting_since: from when on the head was there and not stopped.
        """
        if now - acting_since < ACT_S:
            return
        for number, known in self._used.items():
            answer = self._record.answers[number]
            plan = answer.plan
            if plan is None or number in self._ending:
                continue
            used_s = known.at(now).least_s * (1 - DRIFT)
            # One that was never placed has no node whose word is waited for.
            waits = not answer.runs and now - acting_since > self._restart_s + ACT_S
            grace_s = 0.0 if waits else self._grace_s
            if used_s > plan.wall_ms / 1000 + grace_s + ACT_S:
                raise Violation(
                    f"{plan.name} goes on {used_s:.1f} s after it began; its budget is "
                    f"{plan.wall_ms} ms"
                )

    def _name(self, number: int) -> str:
        plan = self._record.answers[number].plan
        return plan.name if plan is not None else f"answer {number:x}"
