"""One chain: the workers that serve a model together, and whose turn each unit of work is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from bus.ids import ModelName, NodeIdentity, NumericsId, WorkerIncarnation
from bus.messages.link_stages import StageOpen, StageOpened, StageRun
from bus.messages.parts import StageStatus
from head.effects import LinkKey
from head.suspects import WorkerName


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A stage of a chain: a model on a node, as its status names it, with its present worker."""

    node: NodeIdentity
    link: LinkKey
    model: ModelName
    worker: WorkerIncarnation
    stage: StageStatus

    @property
    def worker_name(self) -> WorkerName:
        """Names the worker in the fleet."""
        return self.node, self.worker


class Turn(Enum):
    """What becomes of a unit of work that came for a chain."""

    TAKEN = 0
    FOREIGN = 1
    OUT_OF_TURN = 2


@dataclass(slots=True, kw_only=True)
class Chain:
    """Owned by the pipelines. The last member is the driver.

    Invariant: `is_open` exactly when all members have opened. Of each group at most one unit is on
    its way, since `due` has the one hop that is taken next.
    """

    number: int
    members: tuple[Member, ...]
    #: What all groups together have of lanes, and the window that is asked for; 0 is as it comes.
    lanes: int
    window: int
    timer: int = 0
    opened: dict[int, StageOpened] = field(default_factory=dict)
    is_open: bool = False
    links: tuple[LinkKey, ...] = ()
    due: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.links = tuple(member.link for member in self.members)
        self.due = [0] * len(self.members)

    @property
    def driver(self) -> Member:
        return self.members[-1]

    @property
    def executors(self) -> tuple[Member, ...]:
        return self.members[:-1]

    @property
    def groups(self) -> int:
        """Units that fill it: one for each stage."""
        return len(self.members)

    # --- opening ------------------------------------------------------------------------------

    def ask(self, index: int) -> StageOpen:
        """What a member is asked; the driver when all others have opened."""
        member, is_driver = self.members[index], index == len(self.members) - 1
        given = [self.opened[place] for place in range(index)] if is_driver else []
        windows = [each.window for each in given if each.window]
        return StageOpen(
            chain=self.number,
            model=member.model,
            index=index,
            stages=len(self.members),
            groups=self.groups,
            lanes=self.lanes,
            window=min(windows, default=self.window),
            host_tokens=min((each.host_tokens for each in given), default=None),
            hidden_type=self.driver.stage.hidden_type,
            numerics=tuple(each.numerics for each in given),
        )

    def is_asked(self, index: int) -> bool:
        """Whether a member was asked to open its stage, and has not answered."""
        before = len(self.members) - 1
        return index not in self.opened and (
            index < before or (index == before and len(self.opened) == before)
        )

    def answered(self, answer: StageOpened) -> int | None:
        """A member has opened; gives the place of the one that is to be asked now, if any is."""
        self.opened[answer.index] = answer
        if len(self.opened) == len(self.members):
            self.is_open = True
        elif len(self.opened) == len(self.members) - 1:
            return len(self.members) - 1
        return None

    def silent(self) -> Member:
        """The first member that was asked and has not answered."""
        return next(m for place, m in enumerate(self.members) if self.is_asked(place))

    @property
    def numerics(self) -> NumericsId:
        """Of the whole chain, once it is open."""
        found = self.opened.get(len(self.members) - 1)
        return NumericsId("") if found is None else found.numerics

    # --- units of work ------------------------------------------------------------------------

    def turn_of(self, link: LinkKey, run: StageRun) -> Turn:
        """Take a unit of work that came over a link, when it is its turn."""
        hop, links = run.hop, self.links
        # Before stage 0 comes the driver, which is the last one.
        if hop >= len(links) or links[hop - 1] != link:
            return Turn.FOREIGN
        if run.group >= len(self.due) or self.due[run.group] != hop:
            return Turn.OUT_OF_TURN
        self.due[run.group] = (hop + 1) % len(links)
        return Turn.TAKEN

    # --- for people ---------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """As `status` shows it."""
        return {
            "chain": f"{self.number:016x}",
            "model": self.driver.stage.model,
            "state": "open" if self.is_open else "opening",
            "window_tokens": self.opened[len(self.members) - 1].window if self.is_open else 0,
            "numerics": self.numerics,
            "stages": [
                {
                    "node": member.node,
                    "model": member.model,
                    "first_layer": member.stage.first,
                    "end_layer": member.stage.end,
                }
                for member in self.members
            ],
        }
