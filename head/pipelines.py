"""Chains of stages: which workers serve a model together, and the way of their units of work.

    last stage loaded ──all layers there──▶ executors asked ──all opened──▶ driver asked ──▶ open
      ▲                                           │                           │             │
      └── a worker or link is gone, one can not, or the time is over: StageClose to all ◀───┘

Chains are made of what nodes' statuses say, and of nothing that is stored: a chain that breaks is
not mended, the next one has another number. The sessions are the driver's (head/failover.py), which
says that they are lost. Units of work rest on no row and go past the output gate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from bus.ids import GenerationId, ModelName, NodeIdentity, WorkerIncarnation
from bus.messages.link_stages import MAX_REASON_BYTES, StageClose, StageOpened, StageRun
from bus.messages.parts import StageStatus
from bus.timers import Timers
from head.chains import Chain, Member, Turn
from head.effects import LinkKey
from head.fleet import Fleet
from head.fleet_node import Node
from head.outbox import Outbox
from head.stage_paths import Missing, Offer, explain_missing, find_path
from head.stage_workers import WAITS, Key, Rest, drives, executors, offers, signature, waits
from head.suspects import WorkerName

#: Workers make room for a chain at once, or after a while when they have to free some first.
OPEN_S = 30.0
#: A worker that could not open a chain is left alone for so long.
REST_S = 10.0
#: Chains whose driver has not said yet what it had when a worker died.
MAX_MOURNED = 256


class Died(Protocol):
    """Takes the death of an executor's worker, and the generations that went through it."""

    def __call__(
        self,
        worker: WorkerName,
        driver: NodeIdentity,
        model: ModelName,
        had: Iterable[GenerationId] | None,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class _Mourned:
    """A chain that ended with an executor's worker; its driver is to say what it had."""

    worker: WorkerName
    driver: Member


class Pipelines:
    """Owned by the head's core.

    Invariant: a driver has one chain at most, and the links of all its members are up; `_waiting`
    are the drivers that have none.

    Args:
        next_number: gives numbers of chains, which never repeat.
        died: is told of executors' workers that died.
    """

    def __init__(
        self,
        *,
        outbox: Outbox,
        fleet: Fleet,
        timers: Timers,
        next_number: Callable[[], int],
        died: Died,
    ) -> None:
        self._outbox = outbox
        self._fleet = fleet
        self._timers = timers
        self._next_number = next_number
        self._died = died
        self._chains: dict[int, Chain] = {}
        self._of_driver: dict[Key, Chain] = {}
        self._waiting: set[Key] = set()
        self._rests: dict[Key, Rest] = {}
        self._mourned: dict[int, _Mourned] = {}
        #: What each node said last of its stages.
        self._seen: dict[NodeIdentity, object] = {}
        fleet.settle = self._settle

    # --- nodes --------------------------------------------------------------------------------

    def changed(self, node: Node, now: float) -> None:
        """A node said what it serves: close what can not go on, open what it makes whole."""
        seen = signature(node)
        if seen == self._seen.get(node.identity, ()) and not node.draining:
            return
        self._seen[node.identity] = seen
        for chain in self._with(node):
            for member in chain.members:
                if member.node == node.identity and (why := self._gone(chain, member, node)):
                    self._close(chain, why, now)
                    break
        self._look_at(node)
        self._form(now)

    def link_down(self, node: Node, reason: str, now: float) -> None:
        """A node's link ended, and all chains that it was in."""
        if self._seen.pop(node.identity, None) is None:
            return
        for chain in self._with(node):
            self._close(chain, f"the link to {node.identity} ended ({reason})", now)
        for number, mourned in list(self._mourned.items()):
            if mourned.driver.node == node.identity:
                # Nobody says any more what the driver had beside what the head knows.
                self._bury(number, None)
        self._look_at(node)
        self._form(now)

    def _settle(self, node: Node) -> None:
        """A driver is ready with a chain alone, whatever a status says that crossed its end."""
        for name, status in node.models.items():
            if drives(status) and status.phase == "ready":
                chain = self._of_driver.get((node.identity, name))
                if chain is None or not chain.is_open or chain.driver.worker != status.worker:
                    node.models[name] = replace(status, phase="loading", worker_phase=WAITS)

    def _look_at(self, node: Node) -> None:
        """Keep which drivers of a node wait for a chain."""
        self._waiting = {key for key in self._waiting if key[0] != node.identity}
        for name, status in node.models.items() if node.up else ():
            key = node.identity, name
            if waits(status) and key not in self._of_driver:
                self._waiting.add(key)
        for name in list(node.missing):
            key = node.identity, name
            if key not in self._waiting and key not in self._of_driver:
                del node.missing[name]
                node.changed()

    def _gone(self, chain: Chain, member: Member, node: Node) -> str:
        """Why a chain can not go on with a member, by the last status of its node."""
        what, status = f"{member.model} on {member.node}", node.models.get(member.model)
        if status is None:
            return f"{what} is served no more"
        if status.worker != member.worker or status.phase == "failed":
            return f"the worker of {what} ended"
        if member is not chain.driver:
            if status.phase != "ready":
                return f"{what} is {status.phase}"
            if node.draining and self._may_leave(chain):
                return f"node {member.node} is drained"
        return ""

    def _may_leave(self, chain: Chain) -> bool:
        """Whether a chain with a node that drains is not needed, or may be made anew without it."""
        driver = chain.driver
        node = self._fleet.get(driver.node)
        if node is None or not node.in_flight(driver.model):
            return True
        return find_path(driver.stage, executors(offers(self._fleet, self._rests))) is not None

    # --- opening ------------------------------------------------------------------------------

    def _form(self, now: float) -> None:
        """Open a chain for every driver that waits, where there are workers for it."""
        found = offers(self._fleet, self._rests) if self._waiting else []
        #: Of last stages, why none of them gets a chain now.
        lacking: dict[StageStatus, Missing] = {}
        for key in sorted(self._waiting):
            mine = next((each for each in found if each.name == key), None)
            if mine is None:
                continue
            stage = replace(mine.stage, folder=ModelName(""))
            path = None if stage in lacking else find_path(stage, executors(found))
            if mine.why_not:
                self._note(key, Missing(mine.why_not, mine.may_come))
            elif path is None:
                if stage not in lacking:
                    lacking[stage] = explain_missing(stage, found)
                self._note(key, lacking[stage])
            else:
                self._waiting.discard(key)
                self._open(mine, path, now)
                self._note(key, Missing("has a chain that is being opened", True))
                # Its executors have one chain more.
                found = offers(self._fleet, self._rests)

    def _note(self, key: Key, missing: Missing) -> None:
        node, model = self._fleet.get(key[0]), key[1]
        if node is not None and node.missing.get(model) != missing:
            node.missing[model] = missing
            node.changed()

    def _open(self, driver: Offer, path: list[Offer], now: float) -> None:
        members = tuple(self._member(each) for each in (*path, driver))
        chain = Chain(
            number=self._next_number(),
            members=members,
            lanes=max(driver.status.lanes_total, 1),
            window=driver.status.window_tokens,
        )
        chain.timer = self._timers.at(now + OPEN_S, partial(self._overdue, chain))
        self._chains[chain.number] = self._of_driver[driver.name] = chain
        self._count(chain, 1)
        for place in range(max(len(path), 1)):
            self._outbox.send(chain.links[place], chain.ask(place))

    def _member(self, offer: Offer) -> Member:
        node = self._fleet.get(offer.node)
        if node is None or node.link is None:
            raise ValueError(f"{offer.node} was offered and has no link")
        status, stage = offer.status, offer.stage
        return Member(
            node=offer.node, link=node.link, model=status.name, worker=status.worker, stage=stage
        )

    def opened(self, link: LinkKey, answer: StageOpened, now: float) -> None:
        """A node has opened its stage of a chain, or could not; of one that is over it is late."""
        chain = self._chains.get(answer.chain)
        if chain is None:
            return
        place = answer.index
        if not chain.is_asked(place) or chain.links[place] != link:
            self._outbox.close_link(link, "it opened a stage that it was not asked for")
            return
        if answer.code:
            member = chain.members[place]
            self._leave_alone(member, f"could not open its stage: {answer.message}", now)
            why = f"{member.model} on {member.node} could not be opened: {answer.message}"
            self._close(chain, why, now)
            return
        following = chain.answered(answer)
        if following is not None:
            self._outbox.send(chain.links[following], chain.ask(following))
        elif chain.is_open:
            self._timers.cancel(chain.timer)
            if (node := self._fleet.get(chain.driver.node)) is not None:
                node.missing.pop(chain.driver.model, None)
                node.changed()

    def _overdue(self, chain: Chain, now: float) -> None:
        if chain.is_open:
            return
        member = chain.silent()
        self._leave_alone(member, f"did not open its stage within {OPEN_S:.0f} s", now)
        self._close(chain, f"{member.node} did not open {member.model} in {OPEN_S:.0f} s", now)

    def _leave_alone(self, member: Member, why: str, now: float) -> None:
        until_s = now + REST_S
        self._rests[member.node, member.model] = Rest(member.worker, until_s, why)
        self._timers.at(until_s, self._rested)

    def _rested(self, now: float) -> None:
        self._rests = {key: rest for key, rest in self._rests.items() if rest.until_s > now}
        self._form(now)

    # --- closing ------------------------------------------------------------------------------

    def closed(self, link: LinkKey, message: StageClose, now: float) -> None:
        """A node says that a chain is over, or what it had when it was told so."""
        chain = self._chains.get(message.chain)
        if chain is not None:
            there = [member for member in chain.members if member.link == link]
            if not there:
                self._outbox.close_link(link, "it closed a chain that it is not in")
                return
            died = (member for member in there if member.worker == message.worker)
            dead = next(died, None) if message.worker else None
            why = f"{there[0].node}: {message.reason or 'it closed the chain'}"
            self._close(chain, why, now, told=link, dead=dead)
        mourned = self._mourned.get(message.chain)
        if mourned is not None and mourned.driver.link == link:
            self._bury(message.chain, message.generations)

    def _close(
        self,
        chain: Chain,
        reason: str,
        now: float,
        *,
        told: LinkKey | None = None,
        dead: Member | None = None,
    ) -> None:
        """End a chain.

        Args:
            told: the link whose node knows of it.
            dead: the member whose worker died.
        """
        del self._chains[chain.number], self._of_driver[chain.driver.node, chain.driver.model]
        self._timers.cancel(chain.timer)
        self._count(chain, -1)
        close = StageClose(
            chain=chain.number,
            reason=reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"),
            worker=WorkerIncarnation(0) if dead is None else dead.worker,
        )
        for link in dict.fromkeys(chain.links):
            if link != told and self._fleet.by_link(link) is not None:
                self._outbox.send(link, close)
        if dead is not None and dead is not chain.driver and chain.is_open:
            self._mourn(chain, dead)
        for member in (chain.driver, *((dead,) if dead is not None else ())):
            self._put_back(member, WAITS if member is not dead else "loading")
        self._fleet.chain_closed(chain.driver.node, chain.driver.model)
        if (node := self._fleet.get(chain.driver.node)) is not None:
            self._look_at(node)
        self._form(now)

    def _put_back(self, member: Member, worker_phase: str) -> None:
        """What the next status of its node will say of a member."""
        node = self._fleet.get(member.node)
        status = None if node is None else node.models.get(member.model)
        if node is not None and status is not None and status.worker == member.worker:
            if status.phase == "ready":
                status = replace(status, phase="loading")
            node.models[member.model] = replace(status, worker_phase=worker_phase)
            node.changed()

    def _mourn(self, chain: Chain, dead: Member) -> None:
        while len(self._mourned) >= MAX_MOURNED:
            self._bury(next(iter(self._mourned)), None)
        self._mourned[chain.number] = _Mourned(dead.worker_name, chain.driver)
        if self._fleet.by_link(chain.driver.link) is None:
            self._bury(chain.number, None)

    def _bury(self, number: int, had: Iterable[GenerationId] | None) -> None:
        mourned = self._mourned.pop(number)
        driver = mourned.driver
        self._died(mourned.worker, driver.node, driver.model, had)

    # --- units of work ------------------------------------------------------------------------

    def run(self, link: LinkKey, message: StageRun, now: float) -> None:
        """Pass a unit of work on to the stage that it is for; one of no open chain is late."""
        chain = self._chains.get(message.chain)
        if chain is None or not chain.is_open:
            return
        turn = chain.turn_of(link, message)
        if turn is Turn.TAKEN:
            self._outbox.forward(chain.links[message.hop], message)
        elif turn is Turn.FOREIGN:
            why = f"it sent a unit of work for stage {message.hop} of a chain in another's place"
            self._outbox.close_link(link, why)
        else:
            why = f"a unit of group {message.group} came at stage {message.hop} out of its turn"
            self._close(chain, why, now)

    # --- what there is ------------------------------------------------------------------------

    def _with(self, node: Node) -> list[Chain]:
        """The chains that a node is in."""
        return [
            chain
            for chain in self._chains.values()
            if any(member.node == node.identity for member in chain.members)
        ]

    def _count(self, chain: Chain, by: int) -> None:
        for member in chain.executors:
            if (node := self._fleet.get(member.node)) is not None:
                node.chains[member.model] += by

    def report(self) -> list[dict[str, Any]]:
        """All chains, as `status` shows them."""
        return [self._chains[number].report() for number in sorted(self._chains)]

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        chains = set(self._chains)
        if sorted(chain.number for chain in self._of_driver.values()) != sorted(chains):
            raise ValueError("a chain has no driver, or a driver has two")
        if self._waiting & self._of_driver.keys():
            raise ValueError("a driver waits for a chain and has one")
        for chain in self._chains.values():
            if any(self._fleet.by_link(link) is None for link in chain.links):
                raise ValueError(f"chain {chain.number:x} has outlived a link")
            if chain.is_open != (len(chain.opened) == len(chain.members)):
                raise ValueError(f"chain {chain.number:x} is open and has not been opened")
        seats = Counter(
            (member.node, member.model)
            for chain in self._chains.values()
            for member in chain.executors
        )
        for node in self._fleet.nodes:
            if +node.chains != Counter(
                {m: n for (at, m), n in seats.items() if at == node.identity}
            ):
                raise ValueError(f"the chains of {node.identity} are counted wrongly")
