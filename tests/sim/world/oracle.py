"""The oracle: sees every event of a fleet in memory and raises `Violation` when a rule is broken.

It keeps a record of its own (tests/sim/world/record.py) and asks the cores nothing, but for the
sizes of their queues and, when all is over, whether anything is left in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bus.ids import GenerationId, ModelName
from bus.messages.worker import Submit
from head.effects import Effects, Output, Persist
from tests.harness.memory_node import NodeHost
from tests.harness.memory_watch import Observer
from tests.sim.world.account_rules import AccountRules
from tests.sim.world.job_rules import JobRules
from tests.sim.world.link_rules import LinkRules
from tests.sim.world.node_rules import NodeRules
from tests.sim.world.record import NodeFacts, Record, Violation
from tests.sim.world.store_rules import StoreRules
from tests.sim.world.verdicts import Verdicts

if TYPE_CHECKING:
    from tests.sim.world.clients import Clients
    from tests.sim.world.world import World

#: Bounds of what waits, far above what the runs need and far below what a leak reaches.
MAX_WAITING_OUTPUTS = 4000
MAX_QUEUED_BYTES = 512 * 1024
#: Where there are jobs: their parts, of some at once.
MAX_JOB_BYTES = 8 * 1024 * 1024
MAX_HANDSHAKES = 16
MAX_TIMERS = 400
LOOK_EVERY_EVENTS = 16
#: Outages of a node's link that are remembered.
MAX_OUTAGES = 64


class Oracle(Observer):
    """Watches one world."""

    def __init__(self, world: World, verdicts: Verdicts, record: Record) -> None:
        self._world = world
        self.record = record
        self.links = LinkRules()
        self.store = StoreRules(record, verdicts)
        self.nodes = NodeRules(record)
        self.accounts = AccountRules(world, record, self.store.requests, self._serves)
        self.verdicts = verdicts
        self.jobs = JobRules(
            world,
            record,
            node_wait_s=verdicts.node_wait_s,
            failover_wait_s=verdicts.failover_wait_s,
        )
        self.callers: Clients | None = None
        self.events = 0
        self._most_bytes = MAX_JOB_BYTES if world.profile.jobs else MAX_QUEUED_BYTES
        #: By link id: the node that it goes to, as the head was told.
        self._node_of: dict[int, str] = {}

    @property
    def _now(self) -> float:
        return self._world.fleet.now

    # --- links --------------------------------------------------------------------------------

    def link_up(self, role: str, name: str, link_id: int) -> None:
        self.links.link_up(role, link_id)
        if role == "head":
            self._node_of[link_id] = name
            facts = self.record.node(name)
            if facts.linked_since is None:
                facts.outages.append((facts.link_down_s, self._now))
                del facts.outages[:-MAX_OUTAGES]
            facts.linked_since, facts.has_reconciled = self._now, False
        self.look_at_service()

    def link_down(self, role: str, name: str, link_id: int) -> None:
        self.links.link_down(role, link_id)
        if role == "head":
            gone = self._node_of.pop(link_id)
            self._unlinked(self.record.node(gone))
            self.jobs.link_down(gone)
        else:
            self.jobs.node_unlinked(name)
        self.look_at_service()

    def _unlinked(self, facts: NodeFacts) -> None:
        facts.linked_since = None
        facts.link_down_s = self._now

    def sent(self, role: str, name: str, link_id: int, message: object) -> None:
        self.links.sent(role, link_id, message)

    def accepted(self, role: str, name: str, link_id: int, message: object) -> None:
        self.links.accepted(role, link_id, message)
        if role == "head":
            self.nodes.head_took(self._node_of[link_id], message, self._now)
            self.jobs.head_took(self._node_of[link_id], message)
        else:
            self.nodes.node_took(self._world.node(name), link_id, message, self._now)
            self.jobs.node_took(name, message)

    # --- the head -----------------------------------------------------------------------------

    def head_started(self, boot: int) -> None:
        self.record.head_started_s = self._now
        self.record.head_starts += 1
        self.record.head_paused = False
        self.store.head_started()
        self.accounts.head_started(self._now)
        self.look_at_service()

    def head_died(self) -> None:
        self.links.forget("head")
        for name in self._node_of.values():
            self._unlinked(self.record.node(name))
        self._node_of.clear()
        self.nodes.head_died()
        self.accounts.head_died()
        self.jobs.head_died()
        self.look_at_service()
        if self.callers is not None:
            self.callers.head_died()

    def effects(self, effects: Effects) -> None:
        self.store.effects(effects, self._now)
        self.accounts.effects(effects, self._now)
        self.jobs.effects(effects)

    def committed(self, persist: Persist) -> None:
        self.store.committed(persist, self._now)
        self.accounts.committed(persist, self._now)

    def released(self, output: Output) -> None:
        self.store.released(output)
        self.accounts.released(output, self._now)

    # --- nodes --------------------------------------------------------------------------------

    def node_started(self, node: NodeHost) -> None:
        facts = self.record.node(node.name)
        facts.started_s = self._now
        facts.is_up, facts.paused_since, facts.worker_is_ready = True, None, False

    def node_died(self, node: NodeHost) -> None:
        facts = self.record.node(node.name)
        facts.broken_s = self._now
        facts.is_up = facts.worker_is_ready = False
        facts.paused_since = None
        self.look_at_service()

    def paused(self, name: str) -> None:
        if name == "head":
            self.record.head_paused = True
        else:
            self.record.node(name).paused_since = self._now
        self.look_at_service()

    def resumed(self, name: str) -> None:
        if name == "head":
            self.record.head_paused = False
            self.accounts.acting_since = self._now
        else:
            facts = self.record.node(name)
            facts.paused_since, facts.resumed_s = None, self._now
        self.look_at_service()

    def worker_ready(self, node: NodeHost) -> None:
        facts = self.record.node(node.name)
        facts.worker_is_ready = True
        facts.worker = node.worker.incarnation if node.worker is not None else 0
        self.look_at_service()

    def worker_died(self, node: NodeHost, running: list[GenerationId]) -> None:
        facts = self.record.node(node.name)
        facts.worker_is_ready, facts.worker, facts.worker_died_s = False, 0, self._now
        self.nodes.worker_died(node.name, running)
        self.verdicts.poison.worker_died(running, self._now)
        self.look_at_service()

    def model_withdrawn(self, node: NodeHost) -> None:
        self.record.node(node.name).worker_is_ready = False
        self.look_at_service()

    def worker_stopped(self, node: NodeHost) -> None:
        # No death: what ran there was given up before, and is to be blamed for nothing.
        facts = self.record.node(node.name)
        facts.worker_is_ready, facts.worker = False, 0
        self.look_at_service()

    def submitted(self, node: NodeHost, submit: Submit) -> None:
        self.nodes.submitted(node, submit, self._now)
        self.accounts.submitted(node.name, submit)

    def computed(self, node: NodeHost, generation: GenerationId, index: int, token: int) -> None:
        self.nodes.computed(node, generation, index, self._now)
        self.accounts.computed(generation, index)

    def side_worker_ready(self, node: NodeHost, model: ModelName) -> None:
        self.jobs.service.worker_ready(node.name, model)
        self.look_at_service()

    def side_worker_died(self, node: NodeHost, model: ModelName) -> None:
        self.jobs.service.worker_died(node.name, model)
        self.look_at_service()

    def side_computed(self, node: NodeHost, message: object) -> None:
        self.jobs.computed(node.name, message)

    def look_at_service(self) -> None:
        """Note since when some node can serve, or none."""
        self.jobs.service.look(self._now)
        record = self.record
        serves = any(self._serves(facts) for facts in record.nodes.values())
        serves = serves and not record.head_paused
        if serves and record.served_since is None:
            record.served_since = self._now
        elif not serves and record.served_since is not None:
            # A link that came and went in one instant served nobody.
            if self._now > record.served_since:
                record.unserved_since = self._now
            record.served_since = None

    def _serves(self, facts: NodeFacts) -> bool:
        return (
            facts.linked_since is not None
            and facts.is_up
            and facts.worker_is_ready
            and facts.paused_since is None
            and not self._world.is_harmed(facts.name)
        )

    # --- callers and every event ----------------------------------------------------------------

    def replied(self, client: bytes, body: dict[str, Any]) -> None:
        if self.callers is not None:
            self.callers.replied(client, body)

    def after_event(self) -> None:
        self.events += 1
        if self.events % LOOK_EVERY_EVENTS == 0:
            self._check_bounds()
            self.accounts.look(self._now)
            if not self.record.head_paused and self.accounts.acting_since <= self._now:
                self.jobs.look(self._now, self.accounts.acting_since)

    def _check_bounds(self) -> None:
        head = self._world.fleet.head
        if head is not None:
            self._bound("outputs that wait at the gate", head.gate.waiting, MAX_WAITING_OUTPUTS)
            self._bound("bytes that wait at the head", head.queued_bytes(), self._most_bytes)
            self._bound("commits that wait", head.writer.waiting, MAX_WAITING_OUTPUTS)
            self._bound("handshakes under way", head.acceptor.half_open, MAX_HANDSHAKES)
            self._bound("timers of the head", len(head.core._timers._callbacks), MAX_TIMERS)
        for node in self._world.fleet.nodes:
            if node.end is not None:
                self._bound(f"bytes at {node.name}", node.end.queued_bytes(), self._most_bytes)

    def _bound(self, what: str, have: int, most: int) -> None:
        if have > most:
            raise Violation(f"{have} {what}; {most} is the most")

    # --- the end --------------------------------------------------------------------------------

    def check_quiet(self) -> None:
        """All calls are over and a lease's time has passed: nothing may be left anywhere."""
        fleet = self._world.fleet
        if fleet.head is None:
            raise Violation("the head is not there at the end")
        answers = fleet.head.core.status(fleet.head.now())["answers"]
        if answers["running"] or answers["queued"]:
            raise Violation(f"the head still has {answers}")
        if fleet.head.gate.waiting:
            raise Violation(f"{fleet.head.gate.waiting} outputs wait for ever")
        self.jobs.check_quiet()
        for claimed in fleet.head.core.fleet.nodes:
            if claimed.claims:
                raise Violation(f"{claimed.identity} has claims of nothing: {claimed.claims}")
        for node in fleet.nodes:
            self._check_node(node)

    def _check_node(self, node: NodeHost) -> None:
        if node.core is None or node.worker is None:
            raise Violation(f"{node.name} is not there at the end")
        if node.worker.running:
            raise Violation(f"{node.name} still computes {list(node.worker.running)}")
        kept = node.core._session.retained_bytes
        if node.core.is_busy or kept:
            raise Violation(f"{node.name} keeps {kept} bytes of events")
        left = [ref for ref in node.core.confirm().held if not self._world.is_made(ref.session)]
        if left:
            raise Violation(f"{node.name} holds sessions that are over: {left}")
        facts = self.record.node(node.name)
        if facts.linked_since is None or not facts.has_reconciled:
            raise Violation(f"{node.name} has no link at the end")
        meant = {session for session, on in self.record.parked.items() if on == node.name}
        if self.nodes.must_agree and (files := node.parked.keys() - meant):
            raise Violation(f"{node.name} has files of {sorted(files)}, which nobody means")
