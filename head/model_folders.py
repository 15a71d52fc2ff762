"""Which models the head has a folder of: names and paths, nothing is opened here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from bus.ids import ModelName
from bus.text.model_files import (
    CHAT_TEMPLATE,
    RECORD,
    TEMPLATE_FOLDERS,
    TOKENIZER,
    TOKENIZER_CONFIG,
)

#: Which files a folder's texts go by, beside the former.
_TEXT_FILES = (RECORD, TOKENIZER_CONFIG, CHAT_TEMPLATE, *TEMPLATE_FOLDERS)


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


def find_stamps(folders: Mapping[ModelName, str]) -> Mapping[ModelName, object]:
    """Of each model's folder, what changes when one of its files for texts does."""
    return {
        model: tuple(_stamp(Path(folder) / name) for name in (TOKENIZER, *_TEXT_FILES))
        for model, folder in folders.items()
    }


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
