"""Which models the node serves, changed by the head while it runs. Pure.

    ModelLoad ──FindModel──▶ fits? ──StartWorker──▶ loading ──▶ ready      (agent/served_model.py)
    ModelUnload ──▶ unloading ──no generation runs, or the time is over──▶ StopWorker ──▶ gone

A command that changes nothing is answered as one that did, so a head that did not hear the answer
gives it again; an unload of a model that the node does not know at all is refused. The answer to a
load goes when its worker was started: what is answered is also remembered for the next start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from agent.actions import Action, FindModel, KnowModel, RememberModel, StartWorker
from agent.served_model import ServedModel
from bus.errors import ModelBusy, NoMemory, SuperfluidError
from bus.ids import CommandId, ModelName
from bus.messages.link import ModelAnswer, ModelLoad, ModelUnload
from bus.messages.parts import StageStatus

_UNITS = ("KiB", "MiB", "GiB", "TiB")


class ModelCommands:
    """Owned by the node's core, which shares `models` and carries out what `due` gives.

    Args:
        models: what is served, changed in place.
        budget_bytes: what all may take together; 0 is no limit.
        do: takes actions.
        tell: sends a message to the head, if one is there.
        runs_on: whether a generation runs on a model's worker.
    """

    def __init__(
        self,
        models: dict[ModelName, ServedModel],
        *,
        budget_bytes: int,
        do: Callable[[Action], None],
        tell: Callable[[object], None],
        runs_on: Callable[[ModelName], bool],
    ) -> None:
        self._models = models
        self._budget_bytes = budget_bytes
        self._do = do
        self._tell = tell
        self._runs_on = runs_on
        #: Loads whose worker is being started.
        self._starting: dict[ModelName, CommandId] = {}
        #: Models whose time to finish what runs is over.
        self._overdue: set[ModelName] = set()

    @property
    def free_bytes(self) -> int:
        """What is left of the budget; below 0 when what it began with takes more."""
        return self._budget_bytes - sum(model.needed_bytes for model in self._models.values())

    # --- what the head says -------------------------------------------------------------------

    def receive(self, message: object, now: float) -> bool:
        """Take a command; False when it is about something else."""
        match message:
            case ModelLoad():
                self._load(message)
            case ModelUnload():
                self._unload(message, now)
            case _:
                return False
        return True

    def _load(self, message: ModelLoad) -> None:
        found = self._models.get(message.model)
        if found is None:
            self._do(FindModel(command=message.command, model=message.model))
        elif found.is_unloading:
            why = f"{found.name} is being unloaded here; load it again once it is gone"
            self.refuse(message.command, found.name, ModelBusy(why))
        else:
            self._answer(message.command, message.model)

    def _unload(self, message: ModelUnload, now: float) -> None:
        found = self._models.get(message.model)
        if found is None:
            self._do(KnowModel(command=message.command, model=message.model))
            return
        if not found.is_stopping:
            found.unload_at = now + message.grace_ms / 1000
            self._do(RememberModel(model=found.name, served=False))
        self._answer(message.command, message.model)

    # --- loading ------------------------------------------------------------------------------

    def found(
        self,
        command: CommandId,
        model: ModelName,
        needed_bytes: int,
        stage: StageStatus | None = None,
    ) -> None:
        """The model lies here and would take so much memory."""
        if model in self._models:
            self._answer(command, model)
        elif self._budget_bytes and needed_bytes > self.free_bytes:
            self.refuse(command, model, self._no_memory(model, needed_bytes))
        else:
            self._models[model] = ServedModel(model, needed_bytes=needed_bytes, stage=stage)
            self._starting[model] = command
            self._do(StartWorker(model=model))

    def started(self, model: ModelName) -> None:
        """A worker of the model runs; the first one answers the load."""
        command = self._starting.pop(model, None)
        if command is not None:
            self._do(RememberModel(model=model, served=True))
            self._answer(command, model)

    def not_started(self, model: ModelName, error: SuperfluidError) -> None:
        """No worker could be started: the model is not served after all."""
        command = self._starting.pop(model, None)
        if command is not None:
            del self._models[model]
            self.refuse(command, model, error)

    def refuse(self, command: CommandId, model: ModelName, error: SuperfluidError) -> None:
        """A load that is not done, and why."""
        details = error.details
        self._tell(
            ModelAnswer(
                command=command,
                model=model,
                code=error.code,
                message=error.message,
                needed_bytes=details.get("needed_bytes", 0),
                free_bytes=details.get("free_bytes", 0),
                loaded=tuple(details.get("loaded", ())),
            )
        )

    def _answer(self, command: CommandId, model: ModelName) -> None:
        self._tell(ModelAnswer(command=command, model=model))

    def _no_memory(self, model: ModelName, needed_bytes: int) -> NoMemory:
        free_bytes = max(0, self.free_bytes)
        sizes = [(each.name, each.needed_bytes) for each in self._models.values()]
        helps = sizes and needed_bytes <= self._budget_bytes
        unload = f"unload one of {_named_sizes(sizes)}, or " if helps else ""
        return NoMemory(
            f"{model} needs {human_bytes(needed_bytes)}, and of the "
            f"{human_bytes(self._budget_bytes)} that this node has for models "
            f"{human_bytes(free_bytes)} are left; {unload}raise memory_bytes, or lower kv_bytes or "
            "kv_host_bytes, in [worker] of its agent.toml and start it again",
            details={
                "needed_bytes": needed_bytes,
                "free_bytes": free_bytes,
                "loaded": [name for name, _ in sizes],
            },
        )

    # --- unloading ----------------------------------------------------------------------------

    def known(self, command: CommandId, model: ModelName) -> None:
        """The model is not served and is one of this node's: there is nothing to unload."""
        self._answer(command, model)

    def due(self) -> list[ServedModel]:
        """Models whose worker is to be stopped now; they count as stopping from here on."""
        found = [
            model
            for model in self._models.values()
            if model.is_unloading
            and not model.is_stopping
            and (model.name in self._overdue or not self._runs_on(model.name))
        ]
        for model in found:
            model.is_stopping = True
        return found

    def stopped(self, model: ModelName) -> None:
        """The model's worker is gone, and its memory free."""
        del self._models[model]
        self._overdue.discard(model)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due (seconds), or None."""
        at = min((self._due_at(model) for model in self._models.values()), default=math.inf)
        return None if math.isinf(at) else at

    def handle_timeout(self, now: float) -> None:
        """End the waiting for what runs."""
        for model in self._models.values():
            if self._due_at(model) <= now:
                self._overdue.add(model.name)

    def _due_at(self, model: ServedModel) -> float:
        if model.unload_at is None or model.is_stopping or model.name in self._overdue:
            return math.inf
        return model.unload_at


def human_bytes(count: int) -> str:
    """A size for people, such as `1.5 GiB`."""
    if count < 1024:
        return f"{count} B"
    size, place = count / 1024, 0
    while size >= 1024 and place < len(_UNITS) - 1:
        size, place = size / 1024, place + 1
    return f"{size:.1f} {_UNITS[place]}"


def _named_sizes(models: Iterable[tuple[str, int]]) -> str:
    """Models with what each takes, the largest first."""
    by_size = sorted(models, key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{name} ({human_bytes(size)})" for name, size in by_size)
