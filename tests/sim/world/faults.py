"""Faults at random moments, each mended after a while; all of them are mended at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.harness.memory_node import NodeHost
from tests.harness.memory_process import Process

if TYPE_CHECKING:
    from tests.sim.world.profiles import Profile
    from tests.sim.world.world import World

AWAY_S = (0.1, 1.0, 5.0, 12.0)
HEAD_AWAY_S = (0.05, 0.5, 3.0, 8.0)
PAUSED_S = (0.3, 1.5, 4.0, 9.0, 16.0)
BLOCKED_S = (0.1, 0.4, 2.0, 5.0, 12.0, 20.0)
RESPAWN_S = (0.1, 0.5, 2.0)
SLOW_S = (0.2, 0.6, 2.0)
UNLOADED_S = (0.2, 1.0, 4.0, 9.0)
DRAINED_S = (0.05, 0.5, 2.0, 5.0)
UNDRAINED_S = (0.2, 2.0, 6.0, 10.0)
GRACES_S = (0.0, 0.0, 0.5, 2.0, 8.0)
#: How often a crash waits for a commit to be under way, and how long.
COMMIT_LOOKS = 200
COMMIT_LOOK_S = 0.002


class Faults:
    """Harms one world until `stop`."""

    def __init__(self, world: World, profile: Profile) -> None:
        self._world = world
        self._fleet = world.fleet
        self._rng = world.rng
        self._every_s = self._rng.choice(profile.fault_every_s)
        self._kinds = list(profile.faults)
        self._weights = list(profile.faults.values())
        self._commit_s = self._fleet.commit_s
        self.going = True

    def start(self) -> None:
        if self._kinds:
            self._next()

    def _next(self) -> None:
        self._fleet.after(self._rng.expovariate(1 / self._every_s), self._strike)

    def _strike(self) -> None:
        if not self.going:
            return
        kind = self._rng.choices(self._kinds, self._weights)[0]
        node = self._rng.choice(self._fleet.nodes)
        self._world.record.count(f"fault {kind}")
        self._world.say(f"FAULT {kind} {node.name}")
        strike: Callable[[NodeHost], None] = getattr(self, f"_{kind}")
        strike(node)
        self._next()

    def stop(self) -> None:
        """Mend everything."""
        self.going = False
        fleet = self._fleet
        fleet.commit_s = min(self._commit_s, 0.03)
        network = fleet.network
        network.drop = network.duplicate = network.reorder = network.misdirect = 0.0
        for sender, receiver in list(network.blocked):
            network.unblock(sender, receiver)
        if fleet.head is None:
            fleet.start_head()
        for process in [fleet.head, *fleet.nodes]:
            if process is not None:
                process.resume()
        for node in fleet.nodes:
            node.worker_paused = False
            if not node.alive:
                node.start()
        self._world.operator.load_all()
        self._world.drainer.undrain_all()
        self._world.oracle.look_at_service()

    def _later(self, choices: tuple[float, ...], action: Callable[[], None]) -> None:
        """Mend something, unless all is mended by then."""

        def mend() -> None:
            if self.going:
                action()

        self._fleet.after(self._rng.choice(choices) * self._rng.uniform(0.7, 1.3), mend)

    # --- crashes ------------------------------------------------------------------------------

    def _crash_node(self, node: NodeHost) -> None:
        if node.alive:
            with self._world.oracle.verdicts.poison.fault():
                node.kill()
            self._later(AWAY_S, lambda: None if node.alive else node.start())

    def _crash_worker(self, node: NodeHost) -> None:
        with self._world.oracle.verdicts.poison.fault():
            node.kill_worker(self._rng.choice(RESPAWN_S))

    def _crash_side(self, node: NodeHost) -> None:
        """The worker dies of a model that does jobs; sooner one that has some."""
        models = sorted(node.side.workers)
        busy = [model for model in models if node.side.workers[model].jobs]
        if models:
            node.side.kill(self._rng.choice(busy or models), self._rng.choice(RESPAWN_S))

    def _crash_head(self, _: NodeHost) -> None:
        if self._fleet.head is not None:
            self._fleet.kill_head()
            self._later(HEAD_AWAY_S, self._restart_head)

    def _restart_head(self) -> None:
        if self._fleet.head is None:
            self._fleet.start_head()

    def _crash_in_commit(self, node: NodeHost, looks: int = COMMIT_LOOKS) -> None:
        head = self._fleet.head
        if head is None or not self.going:
            return
        if head.writer.waiting:
            self._crash_head(node)
        elif looks:
            self._fleet.after(COMMIT_LOOK_S, lambda: self._crash_in_commit(node, looks - 1))

    def _unload(self, node: NodeHost) -> None:
        self._world.operator.unload(node, self._rng.choice(GRACES_S))
        self._later(UNLOADED_S, lambda: self._world.operator.load(node.name))

    def _drain(self, node: NodeHost) -> None:
        """Drain a node, and mostly start its agent again, early or late."""
        drainer = self._world.drainer
        drainer.drain(node)
        if self._rng.random() < 0.7:
            self._later(DRAINED_S, lambda: self._crash_node(node))
        self._later(UNDRAINED_S, lambda: drainer.undrain(node.name))

    # --- cables -------------------------------------------------------------------------------

    def _block(self, *ways: tuple[str, str]) -> None:
        network = self._fleet.network

        def mend() -> None:
            for way in ways:
                network.unblock(*way)
            self._world.oracle.look_at_service()

        for way in ways:
            network.block(*way)
        self._world.oracle.look_at_service()
        self._later(BLOCKED_S, mend)

    def _partition(self, node: NodeHost) -> None:
        self._block((node.name, "head"), ("head", node.name))

    def _one_way(self, node: NodeHost) -> None:
        way = (node.name, "head")
        self._block(way if self._rng.random() < 0.5 else way[::-1])

    def _cut(self, node: NodeHost) -> None:
        node.cut_connection()

    def _flap(self, node: NodeHost) -> None:
        for times in range(self._rng.randint(2, 4)):
            self._fleet.after(times * self._rng.uniform(0.02, 0.6), node.cut_connection)

    # --- pauses and disks -----------------------------------------------------------------------

    def _pause(self, process: Process) -> None:
        process.pause()
        self._later(PAUSED_S, process.resume)

    def _pause_node(self, node: NodeHost) -> None:
        self._pause(node)

    def _pause_head(self, _: NodeHost) -> None:
        if self._fleet.head is not None:
            self._pause(self._fleet.head)

    def _pause_worker(self, node: NodeHost) -> None:
        node.worker_paused = True
        self._world.oracle.look_at_service()

        def mend() -> None:
            node.worker_paused = False
            self._world.oracle.look_at_service()

        self._later(PAUSED_S, mend)

    def _slow_disk(self, _: NodeHost) -> None:
        self._fleet.commit_s = self._rng.choice(SLOW_S)

        def mend() -> None:
            self._fleet.commit_s = self._commit_s

        self._later(PAUSED_S, mend)
