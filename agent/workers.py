"""The node's worker processes, one slot of the pool per model; translates between pool and core.

Beside that it watches them: one that hangs is told to the core, killed, and started again. The
machine's cores are divided over the workers at a worker's start: one that runs keeps its threads
when models are loaded or unloaded beside it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from agent.config import WorkerSection, share_threads
from agent.core import AgentCore
from agent.load import usable_cores
from agent.proc_state import read_process
from agent.worker_environment import worker_environment
from agent.worker_watch import WorkerWatch
from bus.errors import DecodeError, TooLarge
from bus.ids import BootCounter, ModelName, WorkerIncarnation
from bus.log import EventLog
from bus.messages.worker import JOB_REQUESTS, WORKER, Park, Restore, Submit
from bus.messages.worker_stages import StageOpen, StageUnit
from bus.transport import clock
from bus.transport.child import ChildSpec
from bus.transport.loop import Loop
from bus.transport.pool import ChildExited, ChildMessage, ChildStarted, PoolEvent, ProcessPool

MODULE = "agent.worker"
#: Of an agent's name in the names of its pipes; bus/state.py leaves room for so much.
_PIPE_NAME_BYTES = 8


def pipe_name(agent: str) -> str:
    """An agent's name as its pipes have it: itself when it is short, else its digest."""
    data = agent.encode()
    if len(data) <= _PIPE_NAME_BYTES:
        return agent
    return hashlib.blake2b(data, digest_size=_PIPE_NAME_BYTES // 2).hexdigest()


class Workers:
    """Keeps a worker per model running. Main thread only; driven by the loop.

    Args:
        name: the agent's; part of the slots' names, since agents share a run folder.
        park_folder: where sessions are parked.
        section: how workers are started.
        agents_here: agents on this machine, over which its cores are divided.
        stop_grace_s: how long the worker of a model that is unloaded may take to end.
    """

    def __init__(
        self,
        loop: Loop,
        core: AgentCore,
        log: EventLog,
        *,
        name: str,
        run_dir: Path,
        park_folder: Path,
        incarnations: BootCounter,
        section: WorkerSection,
        agents_here: int,
        stop_grace_s: float,
        log_level: str,
    ) -> None:
        self._core = core
        self._log = log
        self._pipe_name = pipe_name(name)
        self._park_folder = park_folder
        self._section = section
        self._agents_here = agents_here
        self._stop_grace_s = stop_grace_s
        self._log_level = log_level
        self._numbers = itertools.count()
        self._slots: dict[ModelName, str] = {}
        self._folders: dict[ModelName, Path] = {}
        self._models: dict[str, ModelName] = {}
        self._watches: dict[ModelName, WorkerWatch] = {}
        loop.add_timer_source(self.next_timeout, self.handle_timeout)
        self._pool = ProcessPool(loop, run_dir, lambda: WorkerIncarnation(incarnations.next()))

    def start(self, models: Mapping[ModelName, Path]) -> None:
        """Start every model's worker.

        Raises:
            StartError: a process can not be started, or its pipes not be made.
        """
        for model, folder in models.items():
            self._add(model, folder)
        for model in models:
            self._start(model)

    def start_model(self, model: ModelName, folder: Path) -> None:
        """Start one more; how many threads the others get at their next start changes with it.

        Raises:
            StartError: its process can not be started, or its pipes not be made.
        """
        self._add(model, folder)
        try:
            self._start(model)
        except BaseException:
            self._remove(model)
            raise
        self._share_anew()

    def stop_model(self, model: ModelName, now: float) -> None:
        """End a model's worker; the core is told when it is gone."""
        if not self._pool.stop_slot(self._slots[model], self._stop_grace_s):
            self._gone(model, now)

    @property
    def threads(self) -> int:
        """Of a worker that is started now."""
        share = len(self._slots) * self._agents_here
        return share_threads(self._section.threads, usable_cores(), share)

    def _add(self, model: ModelName, folder: Path) -> None:
        # A number that was not used before: what a former slot left behind is not taken for its.
        slot = f"{self._pipe_name}.{next(self._numbers)}"
        self._slots[model], self._models[slot] = slot, model
        self._folders[model] = folder
        self._watches[model] = WorkerWatch(self._section.watch_policy())

    def _remove(self, model: ModelName) -> None:
        del self._models[self._slots.pop(model)], self._folders[model], self._watches[model]

    def _start(self, model: ModelName) -> None:
        slot = self._slots[model]
        environment = worker_environment(os.environ)
        arguments = self._arguments(model)
        self._pool.start_slot(ChildSpec(name=slot, module=MODULE, args=arguments, env=environment))

    def _share_anew(self) -> None:
        for model, slot in self._slots.items():
            self._pool.set_args(slot, self._arguments(model))

    def _gone(self, model: ModelName, now: float) -> None:
        self._remove(model)
        self._share_anew()
        self._core.worker_stopped(model, now)

    def _arguments(self, model: ModelName) -> tuple[str, ...]:
        section = self._section
        arguments = {
            "--model-folder": self._folders[model],
            "--device": section.device,
            "--lanes": section.lanes,
            "--kv-bytes": section.kv_bytes,
            "--kv-host-bytes": section.kv_host_bytes,
            "--threads": self.threads,
            "--prepack": "on" if section.prepack else "off",
            "--log-level": self._log_level,
        }
        if section.park_bytes:
            arguments |= {
                "--park": self._park_folder,
                "--park-bytes": section.park_bytes,
                "--park-age-s": section.park_age_s,
            }
        return tuple(str(word) for pair in arguments.items() for word in pair)

    def handle_events(self, now: float) -> None:
        """Tell the core what happened to the workers since the last call."""
        for event in self._pool.events():
            if (model := self._models.get(event.slot)) is not None:
                self._handle(event, model, now)

    def _handle(self, event: PoolEvent, model: ModelName, now: float) -> None:
        watch = self._watches[model]
        match event:
            case ChildStarted(incarnation=incarnation):
                watch.started(now)
                self._core.worker_started(model, incarnation, now)
            case ChildMessage(incarnation=incarnation, data=data):
                try:
                    message = WORKER.decode(data)
                except DecodeError as error:
                    self._log.error("worker_unreadable", model=model, error=error)
                    self._pool.kill(event.slot)
                    return
                watch.heard(message, now)
                self._core.worker_message(model, incarnation, message, now)
            case ChildExited(incarnation=incarnation, returncode=code, respawn_in_s=again_in_s):
                watch.ended()
                self._core.worker_exited(model, incarnation, code, again_in_s, now)
                if again_in_s is None:
                    self._gone(model, now)

    def send(self, model: ModelName, message: object) -> None:
        """Hand a message to a model's worker; a submit that it can not take goes back."""
        try:
            slot = self._slots.get(model)
            sent = slot is not None and self._pool.send(slot, WORKER.encode(message))
        except TooLarge as error:
            self._log.warning("message_too_large", model=model, error=error)
            sent = False
        if sent:
            self._watches[model].sent(message, clock.now())
        elif isinstance(message, Submit):
            self._core.worker_behind(message.generation, model)
        elif isinstance(message, Park | Restore):
            self._core.worker_parks_none(model, message)
        elif isinstance(message, JOB_REQUESTS):
            self._core.worker_takes_no_job(model, message.job)
        elif isinstance(message, StageOpen | StageUnit):
            self._core.worker_takes_no_unit(model, message.chain, clock.now())

    def next_timeout(self) -> float | None:
        """When a worker is to be looked at (seconds), or None."""
        times = (watch.next_timeout() for watch in self._watches.values())
        return min((at for at in times if at is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """Look at the workers for which work waits, and end those that hang."""
        self.handle_events(now)  # What they have said counts first.
        for model, watch in self._watches.items():
            at = watch.next_timeout()
            if at is not None and at <= now:
                self._look(model, watch, now)

    def _look(self, model: ModelName, watch: WorkerWatch, now: float) -> None:
        slot = self._slots[model]
        pid, incarnation = self._pool.pid(slot), self._pool.incarnation(slot)
        why = watch.look(None if pid is None else read_process(pid), now)
        if why is not None and incarnation is not None:
            self._core.worker_hung(model, incarnation, why, now)
            self._pool.kill(slot)

    def mark_ready(self, model: ModelName) -> None:
        """The model's worker works."""
        if model in self._slots:
            self._pool.mark_ready(self._slots[model])

    def pids(self) -> Iterable[int]:
        """Process ids of the workers that run."""
        return [pid for slot in self._models if (pid := self._pool.pid(slot)) is not None]

    def close(self, grace_s: float) -> None:
        """End all workers; blocks for at most about `grace_s`. May be called again."""
        self._pool.close(grace_s)
