"""The models of this machine: how they are got, made and listed by the program of models."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from bus.errors import Invalid, ModelIncomplete
from head.cli.output import progress_bars
from head.cli.program import run_model_program

#: How the first part of a split file is marked.
_PART = re.compile(r"-\d{5}-of-\d{5}\Z")


def pull_model(name: str) -> Path:
    """Download a known model, or find it in the cache; gives its GGUF file."""
    with progress_bars() as report:
        path, _ = run_model_program(["pull", name], report)
    return path


def import_model(file: Path, name: str, models: Path, variant: str | None = None) -> Path:
    """Make a model folder from a GGUF file or another program's folder; gives the folder.

    Raises:
        Invalid: a name or variant that is none.
        ModelIncomplete: the file or folder can not be imported.
    """
    models.mkdir(mode=0o700, parents=True, exist_ok=True)
    arguments = [
        "import",
        str(file),
        "--into",
        str(models),
        "--name",
        name,
        *variant_words(variant),
    ]
    try:
        with progress_bars() as report:
            path, _ = run_model_program(arguments, report)
    except Invalid as error:
        if error.param in ("name", "variant"):
            raise
        raise _not_importable(file, error) from error
    return path


def _not_importable(file: Path, error: Invalid) -> ModelIncomplete:
    """The error of a source that is wrong, not of how it was asked for."""
    if str(file) in error.message:
        return ModelIncomplete(error.message, param=error.param)
    return ModelIncomplete(
        f"{file} can not be imported: {error.message}; take another file, and see all that is "
        f"wrong with this one with: sfctl model check {shlex.quote(str(file))}",
        param=error.param,
    )


def variant_words(variant: str | None) -> list[str]:
    """The option of the program of models for a variant."""
    return [] if variant is None else ["--variant", variant]


def default_name(file: Path) -> str:
    """What a model is called when nobody says: as its folder or file, without a part's number."""
    if file.is_dir():
        return file.resolve().name.lower()
    return _PART.sub("", file.stem).lower()


def local_models(models: Path) -> list[dict[str, Any]]:
    """One map per model folder: `name`, `usable`, and its figures or the `reason` why not."""
    _, rows = run_model_program(["ls", str(models)])
    return rows


def usable_models(models: Path) -> list[str]:
    """Names of the models here that can be served."""
    return [str(row["name"]) for row in local_models(models) if row.get("usable")]
