"""The models of this machine: how they are got, made and listed by the program of models."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bus.errors import Invalid, ModelIncomplete
from head.cli.output import progress_bars
from head.cli.program import run_model_program

#: What a model is called or pulled by, in small letters: a word, not a path.
MODEL_WORD = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
#: How the first part of a split file is marked.
_PART = re.compile(r"-\d{5}-of-\d{5}\Z")
#: Parameters of an import that are not about its source.
_ASKED_FOR = ("name", "variant", "stage", "stages", "layers")


def pull_model(name: str) -> Path:
    """Download a known model, or find it in the cache; gives its GGUF file."""
    with progress_bars() as report:
        path, _ = run_model_program(["pull", name], report)
    return path


def import_model(file: Path, name: str, models: Path, options: Sequence[str] = ()) -> Path:
    """Make a model folder from a GGUF file or another program's folder; gives the folder.

    Args:
        options: of the program of models, for a variant or a stage.

    Raises:
        Invalid: a name, variant or stage that is none.
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
        *options,
    ]
    try:
        with progress_bars() as report:
            path, _ = run_model_program(arguments, report)
    except Invalid as error:
        if error.param in _ASKED_FOR:
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


def stage_words(stage: str | None, layers: str | None) -> list[str]:
    """The options of the program of models for one stage."""
    given = (("--stage", stage), ("--layers", layers))
    return [word for name, value in given if value is not None for word in (name, value)]


def stage_folder(source: Path, name: str, words: Sequence[str]) -> str:
    """What the folder of one stage of a GGUF file will be called; reads the file's header only.

    Raises:
        Invalid: there is no such stage.
        ModelIncomplete: the file can not be imported.
    """
    try:
        _, rows = run_model_program(["stage", str(source), "--name", name, *words])
    except Invalid as error:
        if error.param in _ASKED_FOR:
            raise
        raise _not_importable(source, error) from error
    return str(rows[0]["name"])


def split_model(
    folder: Path, models: Path, stages: int | None, layers: str | None
) -> list[dict[str, Any]]:
    """Make folders of a model's stages; gives a map for each, with `name`, `path` and `stage`."""
    how = ["--layers", layers] if layers is not None else ["--stages", str(stages)]
    with progress_bars() as report:
        _, rows = run_model_program(["split", str(folder), *how, "--into", str(models)], report)
    return rows


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
