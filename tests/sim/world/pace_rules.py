"""Slow readers: a node that is to wait for them makes no more than its window ahead of them."""

from __future__ import annotations

from typing import Any

from bus.event_window import LEAST_ROOM, WINDOW_EVENTS
from bus.ids import GenerationId, count_ids
from head.effects import Persist
from head.rows import PutTokens
from tests.sim.world.record import Plan, Record, Run, Violation

#: A reader that grants less at a time has its node wait.
SMALL_CREDIT = 4096
#: More than a worker makes in one step.
MOST_IN_A_STEP = 64


class PaceRules:
    """Args: the record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        #: By plan's name: its only request and how far that was served; None after a second one.
        self._served: dict[str, tuple[bytes, int] | None] = {}
        #: By generation: the most tokens that came at once, which nobody was behind with before.
        self._most: dict[GenerationId, int] = {}

    def committed(self, persist: Persist) -> None:
        for row in persist.rows:
            if isinstance(row, PutTokens):
                most = self._most.get(row.generation, 0)
                self._most[row.generation] = max(most, count_ids(row.ids))

    def released(self, plan: Plan, body: dict[str, Any]) -> None:
        """Something leaves the head for a reader."""
        if plan.credit >= SMALL_CREDIT:
            return
        request, end = body["id"], 0
        if body["kind"] == "event" and body["type"] == "token":
            end = body["offset"] + len(body["tokens"])
        known = self._served.get(plan.name, (request, 0))
        same = known is not None and known[0] == request
        self._served[plan.name] = (request, max(end, known[1])) if known and same else None

    def computed(self, generation: GenerationId, index: int) -> None:
        run = self._record.runs[generation]
        plan = run.answer.plan
        if plan is None or plan.credit >= SMALL_CREDIT:
            return
        if plan.unread_since is not None or plan.unread_s:
            return  # Nobody was waited for meanwhile.
        served = self._served.get(plan.name)
        if served is None or not self._is_undisturbed(run):
            return
        ahead = run.row.first_offset + index + 1 - served[1]
        # Where it moved, what was ahead already counts, and it makes little more.
        room = max(WINDOW_EVENTS, run.row.first_offset - served[1] + LEAST_ROOM)
        if ahead > room + self._most.get(generation, 0) + MOST_IN_A_STEP:
            raise Violation(f"{plan.name} is {ahead} tokens ahead of its only reader, who waits")

    def _is_undisturbed(self, run: Run) -> bool:
        """Whether its node had one link for all of the run, and was not stopped meanwhile.

        A new link settles what is known, and a worker goes on while its agent stands still.
        """
        facts = self._record.node(run.row.node)
        is_linked = facts.linked_since is not None and facts.linked_since < run.at_s
        has_run = facts.paused_since is None and facts.resumed_s < run.at_s
        return is_linked and has_run and self._record.head_started_s < run.at_s
