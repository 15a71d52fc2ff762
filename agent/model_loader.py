"""Does what the node's core wants done about models: finds, starts, stops and remembers them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.actions import FindModel, KnowModel, RememberModel, StartWorker, StopWorker
from agent.config import WorkerSection
from agent.core import AgentCore
from agent.model_memory import needed_bytes
from agent.models.folder import ModelFolder
from agent.models.registry import Unusable, find_model, list_models
from agent.served_folders import ModelChanges, write_changes
from agent.stage_status import stage_status
from agent.workers import Workers
from bus.errors import NotFound, SuperfluidError
from bus.ids import ModelName
from bus.log import EventLog
from bus.messages.parts import StageStatus

ModelAction = FindModel | KnowModel | StartWorker | StopWorker | RememberModel


def known_needs(
    models: Mapping[ModelName, ModelFolder | Unusable], section: WorkerSection
) -> dict[ModelName, int]:
    """What each model takes of memory, of those whose folder says it."""
    return {
        name: needed_bytes(found, section)
        for name, found in models.items()
        if isinstance(found, ModelFolder)
    }


def known_stages(
    models: Mapping[ModelName, ModelFolder | Unusable],
) -> dict[ModelName, StageStatus]:
    """Which part of which model each folder holds, of those that hold a part."""
    return {
        name: stage
        for name, found in models.items()
        if isinstance(found, ModelFolder) and (stage := stage_status(found)) is not None
    }


class ModelLoader:
    """Owned by the node's adapter. Main thread only.

    Args:
        folder: of the model folders.
        node_folder: keeps what is remembered.
        changes: what it keeps already.
    """

    def __init__(
        self,
        core: AgentCore,
        workers: Workers,
        log: EventLog,
        *,
        section: WorkerSection,
        folder: Path,
        node_folder: Path,
        changes: ModelChanges,
    ) -> None:
        self._core = core
        self._workers = workers
        self._log = log
        self._section = section
        self._folder = folder
        self._node_folder = node_folder
        self._changes = changes
        #: Folders of models that were found and are about to be started.
        self._found: dict[ModelName, Path] = {}

    def act(self, action: ModelAction, now: float) -> None:
        """Carry an action out; the core hears what came of it."""
        match action:
            case FindModel():
                self._find(action)
            case KnowModel():
                self._know(action)
            case StartWorker(model=model):
                self._start(model, now)
            case StopWorker(model=model):
                self._workers.stop_model(model, now)
            case RememberModel(model=model, served=served):
                self._remember(model, served=served)

    def _find(self, action: FindModel) -> None:
        try:
            folder = find_model(self._folder, action.model)
        except SuperfluidError as error:
            self._core.model_missing(action.command, action.model, error)
            return
        self._found[action.model] = folder.path
        need = needed_bytes(folder, self._section)
        self._core.model_found(action.command, action.model, need, stage_status(folder))

    def _know(self, action: KnowModel) -> None:
        here = list_models(self._folder)
        if action.model in here or self._changes.has(action.model):
            self._core.model_known(action.command, action.model)
            return
        error = NotFound(
            f"it knows no model {action.model!r} (its models: {', '.join(here) or 'none'}), so "
            "there is nothing to unload; see: sfctl model ls --fleet",
            param="model",
        )
        self._core.model_missing(action.command, action.model, error)

    def _start(self, model: ModelName, now: float) -> None:
        try:
            self._workers.start_model(model, self._found.pop(model))
        except SuperfluidError as error:
            self._core.worker_not_started(model, error, now)

    def _remember(self, model: ModelName, *, served: bool) -> None:
        self._changes = self._changes.after(model, served=served)
        try:
            write_changes(self._node_folder, self._changes)
        except OSError as error:
            self._log.error("models_not_remembered", folder=self._node_folder, error=error)
