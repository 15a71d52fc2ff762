"""What the fleet calls the models of a node: each by its folder's name, but a last stage.

A node with the last stage of a model serves the whole one, so to the head it goes by that name.
Where a folder of the whole model is served too, that one has the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent.served_model import ServedModel
from bus.ids import ModelName
from bus.messages.link import ModelLoad, ModelUnload, SessionAssign, WorkerDied
from bus.messages.link_jobs import JobStart
from bus.messages.link_parking import SessionForget
from bus.messages.link_stages import StageOpen

#: The messages of a head that name a model.
_NAMING = frozenset({SessionAssign, JobStart, SessionForget, StageOpen, ModelLoad, ModelUnload})


class ServedNames:
    """Owned by the node's core, which shares `models`: by the names of their folders."""

    def __init__(self, models: Mapping[ModelName, ServedModel]) -> None:
        self._models = models

    def shown(self, model: ServedModel) -> ModelName:
        """What the head calls a model."""
        if model.stage is None or not model.drives:
            return model.name
        return model.stage.model if self.folder(model.stage.model) == model.name else model.name

    def folder(self, shown: ModelName) -> ModelName:
        """The folder's name of what the head calls so; the same where no model is called so."""
        if shown in self._models:
            return shown
        stages = (each for each in self._models.values() if each.drives)
        return next((e.name for e in stages if e.stage and e.stage.model == shown), shown)

    def of_head(self, message: object) -> object:
        """A message of the head, with the folder's name in it."""
        if type(message) not in _NAMING:
            return message
        named: Any = message
        folder = self.folder(named.model)
        return message if folder == named.model else replace(named, model=folder)

    def for_head(self, message: object) -> object:
        """A message about sessions, with the name in it that the head knows."""
        if type(message) is not WorkerDied or (found := self._models.get(message.model)) is None:
            return message
        return replace(message, model=self.shown(found))
