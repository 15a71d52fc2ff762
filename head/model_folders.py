"""Which models the head has a folder of: names and paths, nothing is opened here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bus.ids import ModelName

#: A folder that has it is a model folder; text processes open and check it.
TOKENIZER = "tokenizer.json"


def find_folders(models: Path) -> Mapping[ModelName, str]:
    """Name to path of every model folder directly under `models`.

    Folders that begin with a dot are imports under way.
    """
    try:
        entries = sorted(models.iterdir())
    except OSError:
        return {}
    return {
        ModelName(entry.name): str(entry.resolve())
        for entry in entries
        if not entry.name.startswith(".") and (entry / TOKENIZER).is_file()
    }
