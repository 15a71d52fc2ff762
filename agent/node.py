"""The node agent: joins core, link, workers and clock in one loop of one thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

from agent.actions import (
    FindModel,
    ForgetParked,
    KeepParked,
    KnowModel,
    Note,
    RememberModel,
    SendToWorker,
    StartWorker,
    StopWorker,
    WorkerIsReady,
)
from agent.blobs import FOLDER
from agent.config import AgentConfig, default_identity, models_root
from agent.core import SOFTWARE, AgentCore
from agent.head_link import HeadLink, fleet_name, fleet_tokens, open_head_link
from agent.load import HostLoad
from agent.model_loader import ModelLoader, known_needs, known_stages
from agent.model_memory import memory_budget
from agent.models.folder import ModelFolder
from agent.models.registry import Unusable
from agent.node_folder import NodeFolder
from agent.parked_files import ParkedFiles, park_folder
from agent.served_folders import ModelChanges
from agent.status_file import StatusFile
from agent.tokenizer_jobs import TokenizerJobs
from agent.workers import Workers
from bus.agent_records import SendToHead
from bus.blob_folder import BlobFolder
from bus.ids import ModelName, NodeIdentity
from bus.link import LinkDown, LinkEvent, LinkUp, MessageReceived, PeerRefused
from bus.log import EventLog
from bus.messages.link import HeadConfirm
from bus.messages.parts import HostStatus
from bus.state import StateFolder, host_folder
from bus.text.tokenizer_export import TOKENIZER_JOB
from bus.transport import clock
from bus.transport.loop import Loop

#: A second SIGTERM ends the agent with this; its workers die with it.
EXIT_HARD = 128 + signal.SIGTERM


class Node:
    """One running agent. Main thread only.

    Args:
        config: checked.
        state: the state folder.
        name: of this agent in the state folder.
        models: what it begins with.
        changes: what was loaded and unloaded since the configuration was made.
        agents_here: agents on this machine, over which its cores are divided.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        state: StateFolder,
        name: str,
        models: Mapping[ModelName, ModelFolder | Unusable],
        changes: ModelChanges,
        agents_here: int,
    ) -> None:
        self._config = config
        self._state = state
        self._name = name
        self._models = models
        self._changes = changes
        self._agents_here = agents_here
        self._log = EventLog("agent.node", node=name)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; then say goodbye, end the workers and return.

        Raises:
            SuperfluidError: it can not start; nothing is left running then.
        """
        tokens = fleet_tokens(self._config, self._state)
        folder_path = self._state.nodes / self._name
        with NodeFolder(folder_path) as folder, Loop() as loop, ExitStack() as opened:
            identity = NodeIdentity(self._config.node.identity or default_identity(folder_path))
            fleet = fleet_name(self._config, self._state, tokens)
            folder.hold_identity(identity, fleet, host_folder())
            files = opened.enter_context(
                BlobFolder(folder_path / FOLDER, self._config.blobs.budget_bytes)
            )
            host = HostLoad()
            opened.callback(host.close)
            exports = opened.enter_context(TokenizerJobs(self._models_root))
            core = self._core(identity, folder.boot, files, exports, host.read(clock.now()))
            loop.add_reader(files.fileno(), core.files_settled)
            loop.add_reader(exports.fileno(), exports.settle)
            workers = self._workers(loop, core, folder)
            try:
                link = open_head_link(
                    loop,
                    core,
                    self._config,
                    state=self._state,
                    folder=folder,
                    identity=identity,
                    tokens=tokens,
                )
                self._serve(loop, core, workers, link, folder, host)
            finally:
                _end_hard_on_signals()
                workers.close(self._config.node.stop_grace_s)
        self._log.info("stopped")

    def _core(
        self,
        identity: NodeIdentity,
        boot: int,
        files: BlobFolder,
        exports: TokenizerJobs,
        host: HostStatus,
    ) -> AgentCore:
        section = self._config.worker
        budget = memory_budget(section.memory_bytes, host.memory_free_bytes, self._agents_here)
        needs = known_needs(self._models, section)
        if budget and sum(needs.values()) > budget:
            self._log.warning(
                "models_over_budget",
                needed_bytes=sum(needs.values()),
                memory_bytes=budget,
                remedy="unload some, or lower kv_bytes in [worker] of agent.toml",
            )
        core = AgentCore(
            identity,
            boot,
            self._models,
            self._config.policy(),
            files,
            needed_bytes=needs,
            budget_bytes=budget,
            stages=known_stages(self._models),
            job_handlers={TOKENIZER_JOB: exports},
        )
        core.host_sampled(host)
        return core

    def _workers(self, loop: Loop, core: AgentCore, folder: NodeFolder) -> Workers:
        return Workers(
            loop,
            core,
            self._log,
            name=self._name,
            run_dir=self._state.run,
            park_folder=park_folder(folder.path),
            incarnations=folder.incarnations,
            section=self._config.worker,
            agents_here=self._agents_here,
            stop_grace_s=self._config.node.stop_grace_s,
            log_level=self._config.log.level,
        )

    @property
    def _models_root(self) -> Path:
        return models_root(self._config, self._state)

    def _serve(
        self,
        loop: Loop,
        core: AgentCore,
        workers: Workers,
        link: HeadLink,
        folder: NodeFolder,
        host: HostLoad,
    ) -> None:
        try:
            self._start_workers(workers, core, link, folder)
            loader = ModelLoader(
                core,
                workers,
                self._log,
                section=self._config.worker,
                folder=self._models_root,
                node_folder=folder.path,
                changes=self._changes,
            )
            status = StatusFile(folder.path, core, self._log)
            status.write(link.label, link.address, clock.now())
            parked = ParkedFiles(park_folder(folder.path), self._log)
            turns = _Turns(loop, core, link, workers, loader, host, status, parked, self._log)
            turns.run(self._config.node.status_interval_s)
            self._log.info("stopping")
        finally:
            link.close("the agent was stopped")

    def _start_workers(
        self, workers: Workers, core: AgentCore, link: HeadLink, folder: NodeFolder
    ) -> None:
        workers.start({name: found.path for name, found in self._models.items()})
        self._log.info(
            "started",
            identity=core.identity,
            boot=folder.boot,
            pid=os.getpid(),
            software=SOFTWARE,
            link=link.label,
            models=",".join(self._models),
            threads=workers.threads,
        )
        if self._config.node.insecure_no_auth and self._config.off_loopback:
            self._log.warning(
                "no_auth", risk="whoever reaches this network can be its head or node"
            )
        if not self._models:
            remedy = "sfctl model import FILE.gguf, or sfctl model load where it was unloaded"
            self._log.warning("no_models", folder=self._models_root, remedy=remedy)


class _Turns:
    """What every turn of the loop does: events into the core, actions out of it."""

    def __init__(
        self,
        loop: Loop,
        core: AgentCore,
        link: HeadLink,
        workers: Workers,
        loader: ModelLoader,
        host: HostLoad,
        status: StatusFile,
        parked: ParkedFiles,
        log: EventLog,
    ) -> None:
        self._loop = loop
        self._core = core
        self._link = link
        self._workers = workers
        self._loader = loader
        self._host = host
        self._status = status
        self._parked = parked
        self._log = log
        #: Whether something happened that the status file tells.
        self._changed = False
        self._sample_at = 0.0
        self._sample_every_s = 0.0

    def run(self, sample_every_s: float) -> None:
        """Turn until a signal ends it."""
        self._sample_every_s = sample_every_s
        self._loop.stop_on_signals()
        self._loop.add_timer_source(self._core.next_timeout, self._core.handle_timeout)
        self._loop.add_timer_source(lambda: self._sample_at, self._sample_host)
        self._loop.on_turn(self._turn)
        self._loop.run()

    def _sample_host(self, now: float) -> None:
        self._changed = True  # The link looks elsewhere, too, without an event.
        self._sample_at = now + self._sample_every_s
        self._core.host_sampled(self._host.read(now))

    def _turn(self, now: float) -> None:
        self._workers.handle_events(now)
        for event in self._link.events():
            self._handle_link(event, now)
        # A submit that a worker does not take comes back as another action.
        while actions := self._core.actions():
            for action in actions:
                match action:
                    case SendToHead(message=message):
                        self._link.send(message)
                    case SendToWorker(model=model, message=message):
                        self._workers.send(model, message)
                    case WorkerIsReady(model=model):
                        self._workers.mark_ready(model)
                    case FindModel() | KnowModel() | StartWorker() | StopWorker() | RememberModel():
                        self._changed = True
                        self._loader.act(action, now)
                    case KeepParked() | ForgetParked():
                        self._parked.act(action)
                    case Note():
                        self._changed = True
                        self._write(action, now)
        self._link.set_busy(self._core.is_busy)
        self._link.flush(now)
        if self._changed:
            self._changed = False
            self._status.write(self._link.label, self._link.address, now)

    def _handle_link(self, event: LinkEvent, now: float) -> None:
        if not isinstance(event, MessageReceived):
            self._changed = True
            self._status.note_link(event, self._link.label, self._link.address)
        match event:
            case LinkUp(peer=peer, confirm=HeadConfirm() as confirm):
                self._log.info("link_up", head=peer.name, head_key=peer.fingerprint)
                self._core.link_up(confirm, now)
            case MessageReceived(message=message):
                self._core.link_message(message, now)
            case LinkDown(code=code, reason=reason):
                self._log.warning("link_down", code=code, reason=reason)
                self._core.link_down(now)
            case PeerRefused(code=code, reason=reason):
                self._log.repeated(now, f"link_{code}", peer=self._link.label, why=reason)

    def _write(self, note: Note, now: float) -> None:
        if note.is_problem:
            peer = str(note.pairs.get("model", ""))
            self._log.repeated(now, note.event, peer=peer, **note.pairs)
        else:
            self._log.info(note.event, **note.pairs)


def _end_hard_on_signals() -> None:
    """From here on a signal ends the process at once, whatever it waits for."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        os._exit(EXIT_HARD)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
