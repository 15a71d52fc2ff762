"""The node's worker processes, one slot of the pool per model; translates between pool and core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from agent.config import WorkerSection
from agent.core import AgentCore
from bus.errors import DecodeError, TooLarge
from bus.ids import BootCounter, ModelName, WorkerIncarnation
from bus.log import EventLog
from bus.messages.worker import WORKER, Submit
from bus.transport.child import ChildSpec
from bus.transport.loop import Loop
from bus.transport.pool import ChildExited, ChildMessage, ChildStarted, PoolEvent, ProcessPool

MODULE = "agent.worker"


class Workers:
    """Keeps a worker per model running. Main thread only; driven by the loop.

    Args:
        name: the agent's; part of the slots' names, since agents share a run folder.
    """

    def __init__(
        self,
        loop: Loop,
        core: AgentCore,
        log: EventLog,
        *,
        name: str,
        run_dir: Path,
        incarnations: BootCounter,
    ) -> None:
        self._core = core
        self._log = log
        self._name = name
        self._slots: dict[ModelName, str] = {}
        self._models: dict[str, ModelName] = {}
        self._pool = ProcessPool(loop, run_dir, lambda: WorkerIncarnation(incarnations.next()))

    def start(
        self,
        models: Mapping[ModelName, Path],
        section: WorkerSection,
        *,
        threads: int,
        log_level: str,
    ) -> None:
        """Start every model's worker.

        Raises:
            StartError: a process can not be started, or its pipes not be made.
        """
        for number, (model, folder) in enumerate(models.items()):
            slot = f"{self._name}.{number}"
            self._slots[model], self._models[slot] = slot, model
            arguments = {
                "--model-folder": folder,
                "--device": section.device,
                "--lanes": section.lanes,
                "--kv-bytes": section.kv_bytes,
                "--threads": threads,
                "--log-level": log_level,
            }
            words = tuple(str(word) for pair in arguments.items() for word in pair)
            self._pool.start_slot(ChildSpec(name=slot, module=MODULE, args=words))

    def handle_events(self, now: float) -> None:
        """Tell the core what happened to the workers since the last call."""
        for event in self._pool.events():
            self._handle(event, self._models[event.slot], now)

    def _handle(self, event: PoolEvent, model: ModelName, now: float) -> None:
        match event:
            case ChildStarted(incarnation=incarnation):
                self._core.worker_started(model, incarnation, now)
            case ChildMessage(incarnation=incarnation, data=data):
                try:
                    message = WORKER.decode(data)
                except DecodeError as error:
                    self._log.error("worker_unreadable", model=model, error=error)
                    self._pool.kill(event.slot)
                    return
                self._core.worker_message(model, incarnation, message, now)
            case ChildExited(incarnation=incarnation, returncode=code, respawn_in_s=again_in_s):
                self._core.worker_exited(model, incarnation, code, again_in_s, now)

    def send(self, model: ModelName, message: object) -> None:
        """Hand a message to a model's worker; a submit that it can not take goes back."""
        try:
            sent = self._pool.send(self._slots[model], WORKER.encode(message))
        except TooLarge as error:
            self._log.warning("message_too_large", model=model, error=error)
            sent = False
        if not sent and isinstance(message, Submit):
            self._core.worker_behind(message.generation, model)

    def mark_ready(self, model: ModelName) -> None:
        """The model's worker works."""
        self._pool.mark_ready(self._slots[model])

    def pids(self) -> Iterable[int]:
        """Process ids of the workers that run."""
        return [pid for slot in self._models if (pid := self._pool.pid(slot)) is not None]

    def close(self, grace_s: float) -> None:
        """End all workers; blocks for at most about `grace_s`. May be called again."""
        self._pool.close(grace_s)
