"""Workers of a node in memory beside the one of its decoder: models that do jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from bus.ids import ModelName, WorkerIncarnation

if TYPE_CHECKING:
    from agent.core import AgentCore
    from tests.harness.memory_node import NodeHost


class SideWorker(Protocol):
    """One process that does jobs."""

    incarnation: WorkerIncarnation

    @property
    def jobs(self) -> Collection[object]:
        """What it has to do."""

    @property
    def poisoned(self) -> bool:
        """Whether the next step kills it."""

    def ready(self) -> object:
        """What it says when its model is loaded."""

    def receive(self, message: object, now: float) -> list[object]:
        """Take a message of its agent; gives its replies."""

    def step(self, now: float) -> list[object]:
        """Do some of the work; gives what came of it."""


#: Makes a worker of one incarnation.
Make = Callable[[WorkerIncarnation], SideWorker]


class SideWorkers:
    """Keeps one worker for each of some models while their agent lives."""

    def __init__(self, node: NodeHost) -> None:
        self._node = node
        #: By model: what makes its workers.
        self.makers: Mapping[ModelName, Make] = {}
        self.workers: dict[ModelName, SideWorker] = {}

    def start(self) -> None:
        """The agent has begun."""
        for model in self.makers:
            self._start(model)

    def forget(self) -> None:
        """The agent is gone, and its workers with it."""
        for model in list(self.workers):
            del self.workers[model]
            self._node.fleet.watch.side_worker_died(self._node, model)

    def receive(self, model: ModelName, message: object) -> None:
        """A message of the agent; a worker that is dead takes none."""
        made = self.workers.get(model)
        for reply in () if made is None else made.receive(message, self._node.fleet.now):
            self._say(model, made, reply)

    def kill(self, model: ModelName, respawn_s: float = 0.25) -> None:
        """kill -9 of one worker; another one follows."""
        node, core = self._node, self._node.core
        made = self.workers.pop(model, None)
        if made is None or core is None:
            return
        node.fleet.watch.side_worker_died(node, model)

        def exited() -> None:
            core.worker_exited(model, made.incarnation, -9, respawn_s, node.now())
            node.fleet.after(respawn_s, lambda: node.post(partial(self._respawn, core, model)))

        node.post(exited)

    def _respawn(self, core: AgentCore, model: ModelName) -> None:
        if self._node.core is core and model not in self.workers:
            self._start(model)

    def _start(self, model: ModelName) -> None:
        node = self._node
        if node.core is None:
            return
        made = self.workers[model] = self.makers[model](node.next_incarnation())
        node.core.worker_started(model, made.incarnation, node.now())
        if node.load_s:
            node.fleet.after(node.load_s, lambda: node.post(partial(self._ready, model, made)))
        else:
            self._ready(model, made)

    def _ready(self, model: ModelName, made: SideWorker) -> None:
        if self.workers.get(model) is made:
            self._node.fleet.watch.side_worker_ready(self._node, model)
            self._say(model, made, made.ready())
            self._step_later(model, made)

    def _step_later(self, model: ModelName, made: SideWorker) -> None:
        fleet = self._node.fleet
        fleet.after(fleet.step_s, partial(self._step, model, made))

    def _step(self, model: ModelName, made: SideWorker) -> None:
        node = self._node
        if self.workers.get(model) is not made:
            return
        if made.poisoned:
            self.kill(model, node.fleet.respawn_s)
            return
        if not node.worker_paused and made.jobs:
            messages = made.step(node.fleet.now)
            for message in messages:
                node.fleet.watch.side_computed(node, message)
            if messages:
                node.post(partial(self._say_all, model, made, messages))
        self._step_later(model, made)

    def _say_all(self, model: ModelName, made: SideWorker, messages: list[object]) -> None:
        for message in messages:
            self._say(model, made, message)

    def _say(self, model: ModelName, made: SideWorker | None, message: object) -> None:
        node = self._node
        if node.core is not None and made is not None:
            node.core.worker_message(model, made.incarnation, message, node.now())
