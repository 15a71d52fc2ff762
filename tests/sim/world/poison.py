"""Requests that kill their workers: how they are drawn, how many they may kill, who ends for it.

A poisoned request kills its worker in its prefill, or as it decodes, whenever its answer reaches a
token of its own. The head can not see that; the oracle goes by which of the generations on a worker
that died was about to do it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from bus.ids import GenerationId
from head.suspects import FEW
from tests.harness.memory_worker import LATE_POISON, POISON, killing_token
from tests.sim.world.record import Answer, Plan, Record, Run, Violation

#: Workers that one poisoned request may kill before it is ended: the third only where the second
#: died with another that was as much to be suspected. One more where the first died with so many
#: that they went on together (head/suspects.py), and for each death that was certain of nobody.
MAX_KILLS = 3
#: And so many where it was alone on each.
MAX_KILLS_ALONE = 2
#: Tokens that may be made in one step, so that the last of them is beyond the one that kills.
MOST_IN_A_STEP = 4


def draw(rng: Random, ids: list[int], max_new: int) -> None:
    """Poison a prompt: for its prefill, or for a token of its answer."""
    if rng.random() < 0.5:
        ids[rng.randrange(len(ids))] = POISON
        return
    place = rng.randrange(len(ids) - 1)
    ids[place : place + 2] = LATE_POISON, rng.randint(1, max_new)


def may_be_served(plan: Plan) -> bool:
    """Whether a poisoned request's answer can be over before its worker dies."""
    kills_at = killing_token(plan.prompt)
    return bool(kills_at) and len(plan.expected) < (kills_at or 0) + MOST_IN_A_STEP


@dataclass(slots=True)
class PoisonRules:
    """Args: the record."""

    record: Record
    #: A worker that dies now was killed by a fault.
    is_fault: bool = False
    #: By answer: deaths of workers with it that no poisoned request caused.
    _others: dict[int, int] = field(default_factory=dict)
    #: By answer: when it last killed a worker, it alone, until the head has drawn its conclusion.
    _killed_s: dict[int, float] = field(default_factory=dict)
    #: By answer: the answers on each of the workers that it killed.
    _beside: dict[int, list[list[Answer]]] = field(default_factory=dict)
    #: By answer: workers that it killed when nothing else was on them.
    _alone: dict[int, int] = field(default_factory=dict)
    #: By answer: workers that it killed with a generation that the head did not know any more, or
    #: of a slow reader, whom a suspect does not wait for when much of it may have been unseen.
    _strays: dict[int, int] = field(default_factory=dict)

    @contextmanager
    def fault(self) -> Iterator[None]:
        """A worker that dies meanwhile was killed by a fault."""
        self.is_fault = True
        try:
            yield
        finally:
            self.is_fault = False

    def worker_died(self, running: list[GenerationId], now: float) -> None:
        """A worker died with these generations."""
        runs = [self.record.runs[one] for one in running if one in self.record.runs]
        killers = [] if self.is_fault else [run for run in runs if self._kills_now(run)]
        for run in runs:
            number = run.answer.row.answer
            if not killers:
                self._others[number] = self._others.get(number, 0) + 1
            elif killers == [run] and run is run.answer.latest and run.answer.finish is None:
                self._killed_s[number] = now
                self._beside.setdefault(number, []).append([one.answer for one in runs])
                if any(self._is_out_of_account(one) for one in runs):
                    self._strays[number] = self._strays.get(number, 0) + 1

    @staticmethod
    def _is_out_of_account(run: Run) -> bool:
        answer, plan = run.answer, run.answer.plan
        if answer.finish is not None or run is not answer.latest:
            return True
        return plan is not None and plan.is_slow

    def _kills_now(self, run: Run) -> bool:
        plan = run.answer.plan
        if plan is None or not plan.poison:
            return False
        made = self.record.made.get(run.row.generation, 0)
        return run.row.first_offset + made >= (killing_token(plan.prompt) or 0)

    def decided(self, answer: Answer, decided_s: float) -> None:
        """The head has placed an answer again, or ended it.

        Raises:
            Violation: it has killed more workers than it may.
        """
        number = answer.row.answer
        killed_s = self._killed_s.pop(number, None)
        if killed_s is None or decided_s < killed_s or self._is_hidden(answer, killed_s):
            return
        answer.kills += 1
        self.record.count(f"killed {answer.kills}")
        name = answer.plan.name if answer.plan else "?"
        if answer.kills > MAX_KILLS + self._excused(answer):
            raise Violation(f"{name} has killed {answer.kills} workers")
        if self._beside[number][-1] == [answer]:
            alone = self._alone[number] = self._alone.get(number, 0) + 1
            if alone >= MAX_KILLS_ALONE and answer.finish is None:
                raise Violation(f"{name} has killed {alone} workers alone and goes on")

    def _excused(self, answer: Answer) -> int:
        number = answer.row.answer
        deaths = self._beside[number]
        unclear = sum(
            one.finish is not None and one.finish.finish not in ("stop", "length", "tool_calls")
            for there in deaths
            for one in there
            if one is not answer
        )
        crowded = any(len(there) > FEW for there in deaths)
        return unclear + self._strays.get(number, 0) + crowded

    def _is_hidden(self, answer: Answer, killed_s: float) -> bool:
        """Whether the head may not have heard that its worker died with an answer."""
        facts = self.record.node(answer.runs[-1].row.node)
        linked_s = facts.linked_since
        was_cut = linked_s is None or linked_s > killed_s or facts.broken_s > killed_s
        return was_cut or self.record.head_started_s > killed_s or facts.drain_asked

    def judge_guilt(self, answer: Answer | None, plan: Plan) -> str:
        """Why an answer may not end as one that kills workers; empty when it may."""
        if answer is None or plan.poison:
            return ""
        return (
            "" if self._others.get(answer.row.answer, 0) else "only others have killed its workers"
        )
