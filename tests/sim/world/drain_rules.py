"""Drained nodes: what runs there moves as soon as another node has had room for a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.harness.memory_worker import LANES
from tests.sim.world.record import Answer, NodeFacts, Record, Violation

#: A head looks again each second, and knows of a node what it said some seconds ago.
MOVES_S = 3.0


class DrainRules:
    """Args: the record, and whether a node can serve now."""

    def __init__(self, record: Record, serves: Callable[[NodeFacts], bool]) -> None:
        self._record = record
        self._serves = serves
        #: By answer: since when it stays, another node (its name) having room all the time.
        self._stays: dict[int, tuple[str, float]] = {}

    def look(self, now: float, acting_since: float) -> None:
        """Args: acting_since: from when on the head was there and not stopped."""
        record = self._record
        drained = [facts for facts in record.nodes.values() if facts.drain_told_s is not None]
        if not drained:
            self._stays.clear()
            return
        running = [a for a in record.answers.values() if a.finish is None and a.runs]
        taken = Counter(str(run.row.node) for a in running if (run := a.latest) is not None)
        open_now = sorted(
            facts.name
            for facts in record.nodes.values()
            if not facts.drain_asked
            and self._serves(facts)
            and facts.has_reconciled
            and taken[facts.name] < LANES
        )
        stays = {}
        for answer in running:
            if self._should_move(answer, now):
                number = answer.row.answer
                name, since = self._stays.get(number, ("", now))
                others = [other for other in open_now if self._may_have(answer, other)]
                if name in others:
                    stays[number] = name, max(since, acting_since)
                elif others:
                    stays[number] = others[0], now
        self._stays = stays
        for number, (name, since) in stays.items():
            if now - since > MOVES_S:
                self._violated(record.answers[number], name, now - since)

    def _should_move(self, answer: Answer, now: float) -> bool:
        run, plan = answer.latest, answer.plan
        if run is None or plan is None or answer.deaths or run.given_up or run.finished:
            return False
        facts = self._record.node(run.row.node)
        is_drained = facts.drain_told_s is not None and now >= facts.drain_told_s
        made = self._record.made.get(run.row.generation, 0) + run.row.first_offset
        return is_drained and facts.linked_since is not None and made < len(plan.expected)

    def _may_have(self, answer: Answer, name: str) -> bool:
        """Whether no run of it was given up there: such a node is left alone for a while."""
        return not any(run.given_up and run.row.node == name for run in answer.runs)

    def _violated(self, answer: Answer, name: str, for_s: float) -> None:
        plan, run = answer.plan, answer.latest
        raise Violation(
            f"{plan and plan.name} stays on {run and run.row.node}, which is drained, while {name} "
            f"has had room for {for_s:.1f} s"
        )
