"""Workers of stages in memory: what goes from one to the next is a hash of all that went before.

The last one makes up the tokens as a whole model's worker does, but only from hidden states that
are what all stages before it would give for the unit of work that it sent. So a unit that went
astray, came twice or went through another chain is an error.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.ids import GenerationId, ModelName, NumericsId, WorkerIncarnation
from bus.messages import worker
from bus.messages.parts import StageStatus
from bus.messages.worker_stages import (
    StageClose,
    StageFailed,
    StageOpen,
    StageOpened,
    StageUnit,
)
from head import reports
from head.core import CorePolicy
from tests.harness.memory_fleet import MemoryFleet
from tests.harness.memory_parts import DIGEST, MODEL, WINDOW
from tests.harness.memory_side import Make, SideWorker
from tests.harness.memory_worker import LANES, MadeUpWorker

LAYERS = 30
HIDDEN = 64
#: A unit of work in which this is kills the executor that does it.
DEADLY = b"deadly"


def stage_status(first: int, end: int, *, whole: str = "one", stages: int = 2) -> StageStatus:
    """What a folder with a range of the made-up model's layers says."""
    return StageStatus(
        model=MODEL,
        whole=whole,
        index=0 if first == 0 else stages - 1,
        stages=stages,
        first=first,
        end=end,
        layers=LAYERS,
        hidden=HIDDEN,
    )


def through(numerics: NumericsId, unit: bytes, hidden: bytes) -> bytes:
    """What a stage gives for a unit and the hidden states that come in."""
    return hashlib.blake2b(numerics.encode() + unit + hidden, digest_size=HIDDEN).digest()


@dataclass(slots=True)
class MadeUpExecutor:
    """A worker of a stage that is not the last. A step does all units that wait."""

    incarnation: WorkerIncarnation
    stage: StageStatus
    window: int = WINDOW
    #: Why it opens no chain.
    refuses: str = ""
    #: It takes units and does none.
    is_stuck: bool = False
    chains: set[int] = field(default_factory=set)
    #: What it was asked for chains, of all times.
    orders: list[StageOpen] = field(default_factory=list)
    waiting: deque[StageUnit] = field(default_factory=deque)
    units: int = 0

    @property
    def numerics(self) -> NumericsId:
        return NumericsId(f"layers {self.stage.first}-{self.stage.end - 1}")

    @property
    def jobs(self) -> deque[StageUnit]:
        return self.waiting

    @property
    def poisoned(self) -> bool:
        """Whether the next step kills it."""
        return any(DEADLY in unit.unit for unit in self.waiting)

    def ready(self) -> worker.Ready:
        return _ready(self.incarnation, self.stage, self.numerics, self.window)

    def receive(self, message: object, now: float) -> list[object]:
        match message:
            case StageOpen(chain=chain):
                self.orders.append(message)
                if self.refuses:
                    return [StageOpened(chain=chain, code="config_invalid", message=self.refuses)]
                self.chains.add(chain)
                window = min(message.window or self.window, self.window)
                return [
                    StageOpened(
                        chain=chain,
                        window=window,
                        lanes=message.lanes,
                        host_tokens=100,
                        numerics=self.numerics,
                    )
                ]
            case StageClose(chain=chain):
                self.chains.discard(chain)
                self.waiting = deque(unit for unit in self.waiting if unit.chain != chain)
            case StageUnit(chain=chain) if chain in self.chains:
                self.waiting.append(message)
            case worker.Ping(nonce=nonce):
                return [worker.Pong(nonce=nonce, stats=worker.WorkerStats(steps=self.units))]
        return []

    def step(self, now: float) -> list[object]:
        if self.is_stuck:
            return []
        done: list[object] = [
            StageUnit(
                chain=unit.chain,
                group=unit.group,
                unit=unit.unit,
                hidden=through(self.numerics, unit.unit, unit.hidden),
            )
            for unit in self.waiting
        ]
        self.units += len(done)
        self.waiting.clear()
        return done


@dataclass(slots=True)
class MadeUpDriver:
    """A worker of a last stage: a unit of work makes a token of each generation of its group."""

    incarnation: WorkerIncarnation
    stage: StageStatus
    window: int = WINDOW
    #: It finds fault with the next unit that comes back.
    fails: bool = False
    inner: MadeUpWorker = field(init=False)
    order: StageOpen | None = None
    #: By group, the unit that is on its way, and whom it makes tokens of.
    away: dict[int, tuple[bytes, list[GenerationId]]] = field(default_factory=dict)
    units: int = 0

    def __post_init__(self) -> None:
        self.inner = MadeUpWorker(self.incarnation, window=self.window)

    @property
    def jobs(self) -> list[object]:
        return list(self.inner.running)

    @property
    def poisoned(self) -> bool:
        return False

    def ready(self) -> worker.Ready:
        return _ready(self.incarnation, self.stage, NumericsId("last"), self.window)

    def receive(self, message: object, now: float) -> list[object]:
        match message:
            case StageOpen(chain=chain):
                self.order = message
                self.away.clear()
                numerics = NumericsId(" + ".join((*message.numerics, "last")))
                return [
                    StageOpened(
                        chain=chain,
                        window=min(message.window or self.window, self.window),
                        lanes=message.lanes,
                        host_tokens=message.host_tokens or 0,
                        numerics=numerics,
                    )
                ]
            case StageClose(chain=chain):
                if self.order is not None and self.order.chain == chain:
                    self._forget()
                return []
            case StageUnit():
                return self._back(message, now)
            case worker.Submit(generation=generation) if self.order is None:
                # It crossed the word that the chain is over.
                why = "its chain is over"
                return [worker.Rejected(generation=generation, code="model_not_ready", message=why)]
        return self.inner.receive(message, now)

    def step(self, now: float) -> list[object]:
        """Send a unit of work for every group that has something to run and none on its way."""
        order = self.order
        if order is None:
            return []
        made: list[object] = []
        for group in range(order.groups):
            mine = {g: s for g, s in self.inner.running.items() if g % order.groups == group}
            if group in self.away or all(sequence.paused for sequence in mine.values()):
                continue
            self.units += 1
            unit = self.units.to_bytes(8, "little") + bytes([group])
            if any(
                s.kills_at is not None and s.submit.generated_tokens + s.made >= s.kills_at
                for s in mine.values()
            ):
                unit += DEADLY
            self.away[group] = unit, list(mine)
            made.append(StageUnit(chain=order.chain, group=group, unit=unit))
        return made

    def _back(self, message: StageUnit, now: float) -> list[object]:
        order = self.order
        if order is None or message.chain != order.chain:
            return []
        if self.fails:
            self.fails = False
            self._forget()
            return [StageFailed(chain=message.chain, code="internal", message="no such lane")]
        (unit, whom), hidden = self.away.pop(message.group), b""
        for numerics in order.numerics:
            hidden = through(numerics, unit, hidden)
        if (message.unit, message.hidden) != (unit, hidden):
            raise AssertionError("a unit of work came back as another")
        running = self.inner.running
        self.inner.running = {g: s for g, s in running.items() if g in whom}
        others = {g: s for g, s in running.items() if g not in self.inner.running}
        made = self.inner.step(now)
        self.inner.running |= others
        return made

    def _forget(self) -> None:
        self.order = None
        self.away.clear()
        self.inner.running.clear()


def executor(first: int, end: int, **options: object) -> tuple[ModelName, Make]:
    """The name of a stage's folder, and what makes its workers."""
    stage = stage_status(first, end, whole=str(options.pop("whole", "one")))

    def make(incarnation: WorkerIncarnation) -> SideWorker:
        made = MadeUpExecutor(incarnation, stage)
        for name, value in options.items():
            setattr(made, name, value)
        return made

    return ModelName(f"toy.{first}"), make


def driver(
    first: int, *, whole: str = "one", made: Callable[[MadeUpDriver], object] = lambda _: None
) -> tuple[ModelName, Make]:
    """The same of the last stage, which begins at a layer."""

    def make(incarnation: WorkerIncarnation) -> SideWorker:
        worker_made = MadeUpDriver(incarnation, stage_status(first, LAYERS, whole=whole))
        made(worker_made)
        return worker_made

    return ModelName(f"toy.{first}"), make


class StageFleet(MemoryFleet):
    """A fleet whose nodes have workers of stages, and none the whole model.

    Args:
        stages: of each node, by name.
    """

    def __init__(
        self,
        *stages: Sequence[tuple[ModelName, Make]],
        seed: int = 0,
        policy: CorePolicy = CorePolicy(),  # noqa: B008 - frozen
    ) -> None:
        self._stages = stages
        super().__init__(seed, len(stages), policy=policy)

    def start(self) -> None:
        for node, makers in zip(self.nodes, self._stages, strict=True):
            node.serves = False
            node.side.makers = dict(makers)
        super().start()

    def worker(self, node: int, model: str) -> SideWorker:
        """The worker of a stage that a node has now."""
        return self.nodes[node].side.workers[ModelName(model)]

    def chains(self) -> list[dict[str, Any]]:
        """As the head reports them."""
        assert self.head is not None
        return self.head.core.pipelines.report()

    @property
    def is_open(self) -> bool:
        """Whether the model is served."""
        head = self.head
        return head is not None and any(
            (status := node.models.get(MODEL)) is not None and status.phase == "ready"
            for node in head.core.fleet.nodes
            if node.up
        )

    def problem(self, node: int, model: str = MODEL) -> str:
        """What the head says is wrong with a model on a node."""
        assert self.head is not None
        for each in reports.nodes(self.head.core.fleet, self.head.now()):
            for row in each["models"]:
                if (each["identity"], row["name"]) == (self.nodes[node].name, model):
                    return str(row["problem"])
        raise AssertionError(f"{model} is not served there")


def _ready(
    incarnation: WorkerIncarnation, stage: StageStatus, numerics: NumericsId, window: int
) -> worker.Ready:
    return worker.Ready(
        worker=incarnation,
        window_tokens=window,
        lanes=LANES,
        kv_total_tokens=LANES * window,
        numerics=numerics,
        tokenizer_digest=DIGEST,
        device="none",
        load_s=0.0,
        stage=stage,
    )
