"""Since when some node can do jobs of a model, or none, by the oracle's own record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus.ids import ModelName
from tests.sim.world.record import NodeFacts, Record
from tests.sim.world.verdicts import DRIFT, MOMENT_S, STATUS_S

if TYPE_CHECKING:
    from tests.sim.world.world import World


class JobService:
    """Args: the world and the record."""

    def __init__(self, world: World, record: Record) -> None:
        self._world = world
        self._record = record
        #: Nodes whose worker of a model is ready.
        self._ready: dict[ModelName, set[str]] = {}
        #: Of each model: since when a node serves it, None for none, and since when none did.
        self._served_since: dict[ModelName, float | None] = {}
        self._unserved_since: dict[ModelName, float] = {}

    def worker_ready(self, node: str, model: ModelName) -> None:
        self._ready.setdefault(model, set()).add(node)

    def worker_died(self, node: str, model: ModelName) -> None:
        self._ready.setdefault(model, set()).discard(node)

    def look(self, now: float) -> None:
        """Note what has changed."""
        for model, ready in self._ready.items():
            serves = not self._record.head_paused and any(
                self._serves(self._record.node(name)) for name in ready
            )
            since = self._served_since.get(model)
            if serves and since is None:
                self._served_since[model] = now
            elif not serves and since is not None:
                if now > since:
                    self._unserved_since[model] = now
                self._served_since[model] = None

    def _serves(self, facts: NodeFacts) -> bool:
        return (
            facts.linked_since is not None
            and facts.is_up
            and facts.paused_since is None
            and not self._world.is_harmed(facts.name)
        )

    def unserved(self, model: ModelName, wait_s: float, now: float) -> str:
        """Why a job can not have waited in vain for so long; empty when it can."""
        since = self._served_since.get(model)
        if since is None or now - since < STATUS_S:
            unserved_s = (since or now) - self._unserved_since.get(model, 0.0)
            if unserved_s >= wait_s * (1 - DRIFT) - MOMENT_S:
                return ""
            return f"no node could do it, but for {unserved_s:.1f} of {wait_s} s only"
        return f"a node could do it for {now - since:.1f} s"

    @staticmethod
    def expired(wall_ms: int, took_s: float) -> str:
        """Why a budget can not be used up; empty when it can."""
        is_over = wall_ms and took_s >= wall_ms / 1000 * (1 - DRIFT)
        return "" if is_over else "its budget was not used up"
