"""`model`: get, make, look at, list, load, unload and remove models."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from bus.errors import NotFound, SessionBusy
from bus.state import StateFolder
from head.cli.context import CliContext, pass_context
from head.cli.keys import fleet_token_file
from head.cli.machine import agents_configured, head_was_here
from head.cli.model_loading import model_load, model_unload
from head.cli.model_plan import model_plan
from head.cli.model_stages import model_split
from head.cli.model_store import (
    MODEL_WORD,
    default_name,
    import_model,
    local_models,
    pull_model,
    stage_folder,
    stage_words,
    variant_words,
)
from head.cli.model_use import check_replaceable, running_agents, serving_agents
from head.cli.nodes import MODEL_COLUMNS
from head.cli.output import format_option, note, print_json, print_rows, progress_bars
from head.cli.program import run_model_program

_LOCAL_COLUMNS = ("name", "usable", "architecture", "size_bytes", "window", "stage", "reason")
#: What `check` and `show` print in their tables, in order, where the program told it.
_CHECK_FACTS = (
    *("path", "usable", "kind", "graph", "variants", "device", "architecture", "name"),
    *("size_label", "parameters", "quantization"),
    *("files", "file_bytes", "window", "kv_bytes_per_token", "lanes", "lane_tokens"),
    *("weights_bytes", "kv_bytes", "memory_bytes", "tokenizer", "eos_ids", "chat_template"),
    *("stage", "dimensions", "pooling", "normalize", "size_bytes", "verified"),
)
_SHOW_FACTS = (
    *(
        "name",
        "path",
        "kind",
        "stage",
        "architecture",
        "source",
        "digest",
        "quantization",
        "numerics",
    ),
    *("layers", "dimensions", "pooling", "normalize", "trained_tokens"),
    *("vocab", "window", "kv_bytes_per_token", "size_bytes", "float16_graph", "template_file"),
    *("eos_ids", "eos_ids_by_file", "bos_id", "add_bos"),
)

_variant_option = click.option(
    "--variant", help="Which graph of an Optimum folder: q4, fp16, model [default: int4, if any]."
)


@click.group()
def model() -> None:
    """Get, make and list models."""


@model.command("pull")
@click.argument("name")
@pass_context
def model_pull(context: CliContext, name: str) -> None:
    """Download a known model and print where its file or folder is.

    Known names: smollm2, gemma3-270m, minilm, whisper-tiny-en.
    """
    path = pull_model(name)
    click.echo(str(path))
    note(f"next: {context.command(f'model import {name}')}")


@model.command("import")
@click.argument("source", metavar="FILE|FOLDER|NAME")
@click.option("--name", help="What to call it [default: NAME, or the file's own].")
@_variant_option
@click.option("--stage", metavar="I/N", help="One stage of a GGUF file's model, such as 1/2.")
@click.option("--layers", metavar="RANGES", help="Its layers, such as 0-14, or those of all N.")
@pass_context
def model_import(
    context: CliContext,
    source: str,
    name: str | None,
    variant: str | None,
    stage: str | None,
    layers: str | None,
) -> None:
    """Make a model folder from a GGUF file, a folder, or a known model by name.

    Folders are read as onnxruntime-genai and Optimum (onnx-community) lay them out, and encoders
    as safetensors, and Whispers as CTranslate2 does. Known names: smollm2, gemma3-270m, minilm,
    whisper-tiny-en. A stage is a range of layers, for a node that serves the model with others.
    """
    if name is not None and not name.strip():
        raise click.UsageError("--name is empty; say what to call the model.")
    if not source.strip():
        raise click.UsageError("FILE|FOLDER|NAME is empty; name a file, a folder or a known model.")
    file = Path(source)
    if not file.exists():
        if not MODEL_WORD.match(source) or source.endswith(".gguf"):
            raise NotFound(
                f"there is no file or folder {source}; name a GGUF file, a folder or a known model"
            )
        file = pull_model(source)
        name = name or source
    state, name = context.state(), name or default_name(file)
    part = stage_words(stage, layers)
    check_replaceable(context, state, stage_folder(file, name, part) if part else name)
    folder = import_model(file, name, state.models, [*variant_words(variant), *part])
    click.echo(str(folder))
    note(f"next: {next_step(context, state, folder.name)}")


def next_step(context: CliContext, state: StateFolder, name: str) -> str:
    """What makes agents of this machine serve a model that was just imported."""
    command, model = context.command, shlex.quote(name)
    if serving := serving_agents(state, name):
        nodes = " ".join(serving)
        return (
            f"{nodes} could not load {name} before; have it tried again: "
            f"{command(f'model unload {model} {nodes}')} && "
            f"{command(f'model load {model} {nodes}')}"
        )
    if running := running_agents(state):
        return command(f"model load {model} {' '.join(running)}")
    if agents_configured(state) and not head_was_here(state):
        return command("up --agent-only")
    has_token = fleet_token_file(state).exists()
    return command("up") if has_token else f"{command('token new')} && {command('up')}"


@model.command("export")
@click.argument("name")
@click.option(
    "--genai",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write it for onnxruntime-genai into this folder, which is not there yet.",
)
@pass_context
def model_export(context: CliContext, name: str, target: Path) -> None:
    """Write a model of this machine as another runtime loads it; its weights are linked."""
    if not name.strip():
        raise click.UsageError("NAME is empty; name a model of this machine.")
    folder = context.look().models / name
    arguments = ["export", str(folder), "--genai", "--into", str(target.absolute())]
    with progress_bars() as report:
        path, _ = run_model_program(arguments, report)
    click.echo(str(path))


@model.command("check")
@click.argument("target", metavar="FILE|FOLDER|NAME")
@click.option("--verify", is_flag=True, help="Compare a folder's hashes too, about 1 s a GB.")
@_variant_option
@format_option
@pass_context
def model_check(
    context: CliContext, target: str, verify: bool, variant: str | None, form: str
) -> None:
    """Say whether a GGUF file, a model, or another program's folder can be served, and why not."""
    if not target.strip():
        raise click.UsageError("FILE|FOLDER|NAME is empty; name a file, a folder or a model.")
    path = str(_checked_path(context, target))
    found = _run_one(["check", path, *["--verify"] * verify, *variant_words(variant)])
    _print_facts(found, _CHECK_FACTS, form)
    for text in found.get("notes", ()):
        note(f"note: {text}")
    for text in found.get("reasons", ()):
        note(f"can not be served: {text}")
    if not found.get("usable"):
        raise click.exceptions.Exit(1)


@model.command("show")
@click.argument("name")
@format_option
@pass_context
def model_show(context: CliContext, name: str, form: str) -> None:
    """Show where a model of this machine comes from, its figures, template and end ids."""
    _print_facts(_run_one(["show", str(context.look().models), name]), _SHOW_FACTS, form)


@model.command("rm")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_context
def model_rm(context: CliContext, name: str, yes: bool) -> None:
    """Remove a model's folder from this machine."""
    state = context.look()
    serving = serving_agents(state, name)
    if serving:
        raise SessionBusy(
            f"{', '.join(serving)} of this machine serves {name}; unload it there first: "
            f"{context.command(f'model unload {name} {serving[0]}')}"
        )
    known = MODEL_WORD.match(name.lower()) is not None and (state.models / name).exists()
    if known and not yes and not _confirmed(f"Remove {state.models / name}?"):
        note("nothing was removed")
        raise click.exceptions.Exit(1)
    path, _ = run_model_program(["rm", str(state.models), name])
    note(f"removed {path}")


def _confirmed(question: str) -> bool:
    """Ask whoever is there.

    Raises:
        click.UsageError: nobody is.
    """
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("Nobody is there to be asked; add --yes.") from None


def _checked_path(context: CliContext, target: str) -> Path:
    """A path as given, or the folder of the model of that name."""
    path = Path(target)
    if path.exists():
        return path
    named = context.look().models / target
    if MODEL_WORD.match(target.lower()) and named.is_dir():
        return named
    raise NotFound(
        f"there is no file, folder or model {target}; see: {context.command('model ls')}"
    )


def _run_one(arguments: list[str]) -> dict[str, Any]:
    """The one map that the program gives."""
    with progress_bars() as report:
        _, rows = run_model_program(arguments, report)
    return {key: value for row in rows for key, value in row.items()}


def _print_facts(found: dict[str, Any], names: tuple[str, ...], form: str) -> None:
    """A fact a line, or all of them as JSON."""
    if form == "json":
        print_json(found)
        return
    rows = [{"fact": name, "value": found[name]} for name in names if name in found]
    print_rows(rows, ("fact", "value"), form)


@model.command("ls")
@click.option("--fleet", is_flag=True, help="The models of the whole fleet, asked of the head.")
@format_option
@pass_context
def model_ls(context: CliContext, fleet: bool, form: str) -> None:
    """List the models of this machine."""
    if fleet:
        with context.client() as client:
            print_rows(client.models(), MODEL_COLUMNS, form)
        return
    rows = local_models(context.look().models)
    staged = any("stage" in row for row in rows)
    columns = [name for name in _LOCAL_COLUMNS if staged or name != "stage"]
    print_rows(rows, columns, form)


for _command in (model_load, model_unload, model_plan, model_split):
    model.add_command(_command)
