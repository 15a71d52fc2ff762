"""The models of a machine: a folder of model folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.models.folder import ModelFolder, import_command
from agent.models.writer import check_name, is_name
from bus.errors import ModelIncomplete, NotFound, SuperfluidError


@dataclass(frozen=True, slots=True)
class Unusable:
    """A folder that can not be served, and why, with the remedy."""

    path: Path
    reason: str


def list_models(models: Path) -> Mapping[str, ModelFolder | Unusable]:
    """Look at every model folder; names are the folders' names, in order.

    Hidden folders (models being made) and plain files are passed over; a folder of models that
    does not exist has none.
    """
    if not models.is_dir():
        return {}
    found: dict[str, ModelFolder | Unusable] = {}
    for path in sorted(models.iterdir()):
        if path.name.startswith(".") or not path.is_dir():
            continue
        try:
            found[path.name] = ModelFolder.open(path)
        except SuperfluidError as error:
            found[path.name] = Unusable(path, error.message)
    return found


def find_model(models: Path, name: str) -> ModelFolder:
    """Open the model of a name.

    Raises:
        NotFound: no folder of that name; says which models there are.
        ModelIncomplete: there is one that can not be served.
    """
    found = list_models(models)
    model = found.get(name)
    if model is None:
        have = ", ".join(found) or "none"
        remedy = (
            f"make it with `{import_command(models / name)}`"
            if is_name(name)
            else "name one of them, or make one with `sfctl model import FILE.gguf`"
        )
        raise NotFound(
            f"there is no model {name!r} in {models} (there: {have}); {remedy}", param="model"
        )
    if isinstance(model, Unusable):
        raise ModelIncomplete(model.reason, param="model")
    return model


def remove_model(models: Path, name: str) -> Path:
    """Remove a model's folder, whole or broken; gives its former path.

    It is hidden first, by one rename, so that nobody finds half of it. Programs that have its
    files open keep them.

    Raises:
        Invalid: a name that no model has.
        NotFound: no folder of that name.
        OSError: it can not be removed.
    """
    folder = models / check_name(name)
    if not folder.is_dir():
        have = ", ".join(list_models(models)) or "none"
        raise NotFound(f"there is no model {name!r} in {models} (there: {have})", param="model")
    if folder.is_symlink():
        folder.unlink()
        return folder
    hidden = models / f".{name}.{os.getpid()}.removed"
    folder.rename(hidden)
    shutil.rmtree(hidden)
    return folder
