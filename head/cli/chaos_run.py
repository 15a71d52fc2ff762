"""The course of a chaos run: strike, see every stream go on, see the fleet well again, repeat."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bus.client import Client
from bus.errors import NoHead, TimedOut
from head.cli.chaos_faults import Kind, LocalFleet, LocalNode
from head.cli.chaos_streams import FLOWING_S, Gap, StreamLoad

#: How often other things are looked at between two portions of tokens.
_TURN_S = 0.05
#: How often the fleet is asked whether it is well.
_ASK_EVERY_S = 0.25
#: How long a fleet may take to be well again after a strike.
RECOVER_S = 90.0
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Strike:
    """One that was done.

    Attributes:
        target: name of the agent, or `head`.
        held_s: how long it was held: a stopped process, a cut link.
        well_s: from the strike until everything was as before.
        gaps: of the streams that it struck.
    """

    kind: Kind
    target: str
    held_s: float
    well_s: float
    gaps: tuple[Gap, ...]


@dataclass(slots=True)
class ChaosRun:
    """Strikes a fleet while a load runs on it.

    Attributes:
        strikes: those that are done.

    Args:
        client: the load's own.
        say: tells a person what happens.
    """

    client: Client
    fleet: LocalFleet
    load: StreamLoad
    model: str
    say: Callable[[str], None]
    #: Seconds between two strikes in which nothing is wrong.
    calm_s: float = FLOWING_S
    strikes: list[Strike] = field(default_factory=list)

    def run(self, kinds: Sequence[Kind], *, seconds: float, least: int) -> None:
        """Strike by the kinds in turn.

        Args:
            seconds: how long; the strike that is under way is ended.
            least: strikes that are done however long they take.

        Raises:
            TimedOut: the fleet did not become well again.
            SuperfluidError: a strike could not be done.
        """
        until = self.load.clock() + seconds
        numbers = itertools.count()
        self._await("before the first strike")
        for kind in itertools.cycle(kinds):
            if self.load.clock() >= until and len(self.strikes) >= least:
                return
            self._strike(kind, next(numbers) // len(kinds))

    def _strike(self, kind: Kind, number: int) -> None:
        node = None if kind.role == "head" else self._next_node(number)
        target = "head" if node is None else node.name
        gaps = self.load.struck(None if node is None else node.identity)
        begin = self.load.clock()
        with self.fleet.strike(kind, node) as hold_s:
            self._keep_going(hold_s)
        self._await(f"after {kind.name} of {target}")
        well_s = self.load.clock() - begin
        # What was on its way may have hidden that a stream stands still.
        self._keep_going(self.calm_s)
        self._await(f"after {kind.name} of {target}")
        self.load.calm()
        self.strikes.append(Strike(kind, target, hold_s, well_s, tuple(gaps)))
        longest = max((gap.longest_s for gap in gaps), default=0.0)
        self.say(
            f"{kind.name} {target}: {len(gaps)} streams struck, longest gap {longest:.2f} s, "
            f"all well after {well_s:.1f} s; {self.load.tally.failed} failed so far"
        )

    def _next_node(self, number: int) -> LocalNode | None:
        """Nodes in turn, of those that run streams."""
        nodes = self.fleet.nodes()
        busy = self.load.nodes
        found = [node for node in nodes if busy.get(node.identity)] or nodes
        return found[number % len(found)] if found else None

    def _keep_going(self, seconds: float) -> None:
        until = self.load.clock() + seconds
        while (left_s := until - self.load.clock()) > 0:
            self.load.turn(min(_TURN_S, left_s))

    def _await(self, when: str) -> None:
        """Until all streams flow and all processes and nodes are as before.

        Raises:
            TimedOut: they are not in time.
        """
        until = self.load.clock() + RECOVER_S
        while True:
            self._keep_going(_ASK_EVERY_S)
            still = self.load.still()
            missing = f"{still} streams stand still" if still else self._missing()
            if not missing:
                return
            if self.load.clock() >= until:
                raise TimedOut(
                    f"the fleet was not well again in {RECOVER_S:g} s {when}: {missing}; see: "
                    "sfctl status"
                )

    def _missing(self) -> str:
        """What is not as it should be; empty when all is."""
        if missing := self.fleet.missing():
            return missing
        try:
            models = self.client.operation("models", timeout_s=_ANSWER_S)["models"]
        except (NoHead, TimedOut) as error:
            return error.message
        serving = {
            node for model in models if model["name"] == self.model for node in model["nodes"]
        }
        nodes = {node.identity: node.name for node in self.fleet.nodes()}
        lacking = sorted(nodes[identity] for identity in nodes.keys() - serving)
        return f"{', '.join(lacking)} serve no {self.model} yet" if lacking else ""
