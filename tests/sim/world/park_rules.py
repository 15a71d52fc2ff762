"""Parked sessions: one is resumed where its file is when that node can take it, and uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bus.ids import SessionId
from head.effects import Effects, Persist
from head.rows import PutParked
from tests.sim.world.record import NodeFacts, Record, Violation

if TYPE_CHECKING:
    from tests.harness.memory_node import NodeHost

#: A node that has served for so long is known to the head as it is.
KNOWN_S = 4.0


class ParkRules:
    """Args: the record, whether a node can serve now, and the nodes by their names."""

    def __init__(
        self,
        record: Record,
        serves: Callable[[NodeFacts], bool],
        node: Callable[[str], NodeHost],
    ) -> None:
        self._record = record
        self._serves = serves
        self._node = node
        #: By session: where its file may be.
        self._file_on: dict[SessionId, str] = {}
        #: Sessions whose resume was decided: the node with the file, which could take it.
        self._resuming: dict[SessionId, str] = {}
        #: By node: since when it serves.
        self._since: dict[str, float] = {}

    def head_died(self) -> None:
        self._resuming.clear()

    def committed(self, persist: Persist) -> None:
        for row in persist.rows:
            if isinstance(row, PutParked) and row.parked:
                self._file_on[row.session] = str(row.file_on)

    def look(self, now: float) -> None:
        """Note which nodes serve."""
        for name, facts in self._record.nodes.items():
            if self._serves(facts) and facts.has_reconciled and not facts.drain_asked:
                self._since.setdefault(name, now)
            else:
                self._since.pop(name, None)

    def effects(self, effects: Effects, now: float, acting_since: float) -> None:
        self.look(now)
        rows = effects.persist.rows if effects.persist is not None else ()
        for row in rows:
            if isinstance(row, PutParked) and not row.parked:
                name = self._file_on.pop(row.session, "")
                is_known = name and self._known_since(name, now) <= now - KNOWN_S
                if is_known and acting_since <= now - KNOWN_S and self._has_file(name, row.session):
                    self._resuming[row.session] = name

    def _known_since(self, name: str, now: float) -> float:
        facts = self._record.node(name)
        events = (facts.linked_since or now, facts.broken_s, facts.worker_died_s, facts.resumed_s)
        return max(*events, facts.undrained_s, self._since.get(name, now))

    def _has_file(self, name: str, session: SessionId) -> bool:
        return bool(self._node(name).parked.get(session))

    def replied(self, body: dict[str, Any]) -> None:
        """A session has a place again."""
        if body["kind"] != "end" or "reused" not in body:
            return
        name = self._resuming.pop(SessionId(body["session"]), "")
        if not name or not body["node"]:
            return
        if body["node"] != name:
            raise Violation(f"{body} is not on {name}, which has its file and could take it")
        if not body["reused"] and not body["problem"]:
            raise Violation(f"{body} reuses nothing of its file, and nothing was wrong")
        self._record.count("files reused")
