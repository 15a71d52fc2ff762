"""The model that benches run on, made once and kept."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agent.models.folder import ModelFolder
from agent.models.importer import import_gguf
from agent.models.pull import default_cache, pull
from bus.errors import ModelIncomplete, NotFound

#: Ignored by git.
DEFAULT_FOLDER = Path("build/bench/smollm2")


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Add `--model-folder`."""
    parser.add_argument(
        "--model-folder",
        type=Path,
        help=f"a model folder [default: SmolLM2-135M-Instruct, made in {DEFAULT_FOLDER}]",
    )


def open_model(option: Path | None) -> ModelFolder:
    """The folder that was asked for, else the default one, made when it is not there."""
    if option is not None:
        return ModelFolder.open(option)
    try:
        return ModelFolder.open(DEFAULT_FOLDER)
    except (NotFound, ModelIncomplete):
        print(f"making {DEFAULT_FOLDER} ...", file=sys.stderr)
        DEFAULT_FOLDER.parent.mkdir(parents=True, exist_ok=True)
        return import_gguf(pull("smollm2", default_cache(), _quiet), DEFAULT_FOLDER)


def _quiet(step: str, done: int, total: int) -> None:
    """Progress that nobody watches."""
