"""Rules of budgets, usage, moves, drains, parked files and slow readers, for the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from bus.ids import GenerationId
from bus.messages.worker import Submit
from head.effects import Effects, Output, Persist, Reply
from tests.sim.world.budget_rules import BudgetRules
from tests.sim.world.drain_rules import DrainRules
from tests.sim.world.move_rules import MoveRules
from tests.sim.world.pace_rules import PaceRules
from tests.sim.world.park_rules import ParkRules
from tests.sim.world.record import NodeFacts, Plan, Record
from tests.sim.world.usage_rules import UsageRules

if TYPE_CHECKING:
    from tests.sim.world.world import World

#: How long past a budget its node's own `expired` is waited for.
EXPIRED_GRACE_S = 4.0
#: How long a head that has begun lets nodes join before it looks at what waits.
RESTART_S = 5.0


class AccountRules:
    """Args: the world, the record, the plan of each client's request, whether a node can serve."""

    def __init__(
        self,
        world: World,
        record: Record,
        requests: dict[tuple[bytes, bytes], Plan],
        serves: Callable[[NodeFacts], bool],
    ) -> None:
        self._record = record
        self._requests = requests
        self._budgets = BudgetRules(record, EXPIRED_GRACE_S, RESTART_S)
        self._usage = UsageRules(record)
        self._moves = MoveRules(record, lambda name: world.node(name).numerics)
        self._paces = PaceRules(record)
        self._drains = DrainRules(record, serves)
        self._parks = ParkRules(record, serves, world.node)
        #: From when on the head is there and not stopped; inf while there is none.
        self.acting_since = math.inf

    def head_started(self, now: float) -> None:
        self.acting_since = now
        self._budgets.head_started(now)

    def head_died(self) -> None:
        self.acting_since = math.inf
        self._moves.head_died()
        self._parks.head_died()

    def effects(self, effects: Effects, now: float) -> None:
        self._budgets.effects(effects, now)
        self._parks.effects(effects, now, self.acting_since)

    def committed(self, persist: Persist, now: float) -> None:
        self._budgets.committed(persist, now)
        self._usage.committed(persist)
        self._paces.committed(persist)
        self._parks.committed(persist)

    def released(self, output: Output, now: float) -> None:
        self._budgets.released(output)
        if isinstance(output, Reply):
            self._parks.replied(output.body)
            plan = self._requests.get((output.client, output.body.get("id") or b""))
            if plan is not None:
                self._moves.released(output.client, plan, output.body, now)
                self._usage.replied(plan, output.body)
                self._paces.released(plan, output.body)

    def submitted(self, name: str, submit: Submit) -> None:
        self._budgets.submitted(name, submit)
        self._usage.submitted(submit)

    def computed(self, generation: GenerationId, index: int) -> None:
        self._paces.computed(generation, index)

    def look(self, now: float) -> None:
        """At what should have come to pass by now."""
        self._parks.look(now)
        if not self._record.head_paused and self.acting_since <= now:
            self._budgets.look(now, self.acting_since)
            self._drains.look(now, self.acting_since)
