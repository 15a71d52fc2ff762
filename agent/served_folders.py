"""Which models this node serves, and where their folders are."""

from __future__ import annotations

from pathlib import Path

from agent.models.registry import find_model, list_models
from bus.ids import ModelName


def served_folders(folder: Path, names: tuple[str, ...]) -> dict[ModelName, Path]:
    """Choose the models of a node.

    A folder that can not be served is chosen too when nobody named it: its worker says what is
    wrong with it, the head hears that, and it is served once it was repaired.

    Args:
        folder: of the model folders.
        names: those to serve; none means all in the folder.

    Raises:
        NotFound: a named model is not there.
        ModelIncomplete: a named model lacks a file.
    """
    if names:
        return {ModelName(name): find_model(folder, name).path for name in names}
    return {ModelName(name): found.path for name, found in list_models(folder).items()}
