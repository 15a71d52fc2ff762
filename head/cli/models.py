"""`model`: get, make and list models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from bus.errors import NotFound
from head.cli.context import CliContext, pass_context
from head.cli.output import format_option, note, print_rows, progress_bars
from head.cli.program import run_model_program

_LOCAL_COLUMNS = ("name", "usable", "architecture", "size_bytes", "window", "reason")
_FLEET_COLUMNS = ("name", "ready", "nodes", "window_tokens", "lanes_total", "queued")
#: What a model is pulled by: a word, not a path.
_PULL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")


def pull_model(name: str) -> Path:
    """Download a known model, or find it in the cache; gives its GGUF file."""
    with progress_bars() as report:
        path, _ = run_model_program(["pull", name], report)
    return path


def import_model(file: Path, name: str, models: Path) -> Path:
    """Make a model folder from a GGUF file; gives the folder."""
    models.mkdir(mode=0o700, parents=True, exist_ok=True)
    arguments = ["import", str(file), "--into", str(models), "--name", name]
    with progress_bars() as report:
        path, _ = run_model_program(arguments, report)
    return path


def local_models(models: Path) -> list[dict[str, Any]]:
    """One map per model folder: `name`, `usable`, and its figures or the `reason` why not."""
    _, rows = run_model_program(["ls", str(models)], lambda step, done, total: None)
    return [{key: value for key, value in row.items() if key != "event"} for row in rows]


def usable_models(models: Path) -> list[str]:
    """Names of the models here that can be served."""
    return [str(row["name"]) for row in local_models(models) if row.get("usable")]


@click.group()
def model() -> None:
    """Get, make and list models."""


@model.command("pull")
@click.argument("name")
@pass_context
def model_pull(context: CliContext, name: str) -> None:
    """Download a known model (such as smollm2) and print where its GGUF file is."""
    path = pull_model(name)
    click.echo(str(path))
    note(f"next: {context.command(f'model import {name}')}")


@model.command("import")
@click.argument("source", metavar="FILE|NAME")
@click.option("--name", help="What to call it [default: NAME, or the file's own].")
@pass_context
def model_import(context: CliContext, source: str, name: str | None) -> None:
    """Make a model folder from a GGUF file, or from a known model by name."""
    file = Path(source)
    if not file.exists():
        if not _PULL_NAME.match(source) or source.endswith(".gguf"):
            raise NotFound(f"there is no file {source}; name a GGUF file or a known model")
        file = pull_model(source)
        name = name or source
    folder = import_model(file, name or file.stem.lower(), context.state().models)
    click.echo(str(folder))


@model.command("ls")
@click.option("--fleet", is_flag=True, help="The models of the whole fleet, asked of the head.")
@format_option
@pass_context
def model_ls(context: CliContext, fleet: bool, form: str) -> None:
    """List the models of this machine."""
    if fleet:
        with context.client() as client:
            print_rows(client.models(), _FLEET_COLUMNS, form)
        return
    print_rows(local_models(context.look().models), _LOCAL_COLUMNS, form)
