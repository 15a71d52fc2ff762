"""`model plan`: which nodes could serve a model together, and how to make their stages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

import click

from bus.errors import NotFound, SuperfluidError
from head.cli.context import CliContext, pass_context
from head.cli.model_store import default_name
from head.cli.output import format_option, note, print_json, print_rows
from head.cli.program import run_model_program
from head.stage_offers import Offers, measured_models, stage_offers
from head.stage_plan import PlannedStage, StageModel, StagePlan, human_bytes, plan

#: What a worker has when nobody chose, and a window that most conversations fit in.
_LANES, _WINDOW = 8, 4096
#: The least that an agent's `kv_bytes` can be.
_LEAST_KV = 1 << 20
_COLUMNS = ("stage", "node", "layers", "weights", "kv", "memory", "free", "step")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")


@click.command("plan")
@click.argument("target", metavar="NAME|FILE.gguf")
@click.option(
    "--node", "names", multiple=True, metavar="NODE", help="Only these [default: all that are up]."
)
@click.option("--lanes", default=_LANES, show_default=True, help="Streams at once.")
@click.option("--window", type=int, help="Tokens of each stream [default: 4096, or the model's].")
@format_option
@pass_context
def model_plan(
    context: CliContext,
    target: str,
    names: Sequence[str],
    lanes: int,
    window: int | None,
    form: str,
) -> None:
    """Say which nodes could serve a model together, each a range of its layers.

    NAME is a model of this machine. Of a GGUF file the header is enough; no weights are read.
    """
    source = _source(context, target)
    with context.client() as client:
        report = client.operation("nodes")
    sizes = _sizes(source)
    model = _model(source, sizes, lanes, window)
    offers = stage_offers(report, names, _work(context, report, model))
    for reason in offers.left_out:
        note(f"left out: {reason}")
    found = plan(model, offers.nodes)
    commands = _commands(context, source, found)
    if form == "json":
        print_json(_described(found, offers, sizes, commands))
        return
    print_rows([_row(stage, found, offers) for stage in found.stages], _COLUMNS, form)
    for text in _said(found, offers, commands):
        note(text)


def _source(context: CliContext, target: str) -> Path:
    """A path as given, or the folder of the model of that name.

    Raises:
        NotFound: there is neither.
    """
    if not target.strip():
        raise click.UsageError("NAME|FILE.gguf is empty; name a model or a file.")
    path = Path(target)
    if path.exists():
        return path
    folder = context.look().models / target
    if _NAME.match(target.lower()) and folder.is_dir():
        return folder
    raise NotFound(f"there is no file or model {target}; see: {context.command('model ls')}")


def _sizes(path: Path) -> dict[str, Any]:
    """What the model's parts take, as the program of models says."""
    _, rows = run_model_program(["sizes", str(path)])
    return rows[0]


def _model(source: Path, sizes: dict[str, Any], lanes: int, window: int | None) -> StageModel:
    figures = {key: value for key, value in sizes.items() if key in StageModel.__slots__}
    figures["layers"] = tuple(sizes["layers"])
    figures["name"] = source.resolve().name if source.is_dir() else default_name(source)
    tokens = min(_WINDOW, sizes["window"]) if window is None else window
    figures |= {"lanes": lanes, "window": tokens, "most_tokens": sizes["window"]}
    return StageModel(**figures)


def _work(context: CliContext, report: dict[str, Any], model: StageModel) -> dict[str, int]:
    """Bytes of a step, of the models that nodes have measured and that are on this machine."""
    found = {model.name: model.work(0, len(model.layers))}
    for name in sorted(measured_models(report) - {model.name}):
        folder = context.look().models / name
        if not _NAME.match(name.lower()) or not folder.is_dir():
            continue
        try:
            sizes = _sizes(folder)
        except SuperfluidError:
            # what is no whole decoder any more says nothing of a node's speed
            continue
        found[name] = sum(sizes["layers"]) + sizes["head_bytes"]
    return found


def _row(stage: PlannedStage, found: StagePlan, offers: Offers) -> dict[str, Any]:
    time = f"{stage.step_s * 1000:.1f} ms" if offers.measured and stage.step_s else None
    return {
        "stage": f"{found.stages.index(stage) + 1}/{len(found.stages)}",
        "node": stage.node,
        "layers": f"{stage.first}-{stage.end - 1}",
        "weights": human_bytes(stage.weights_bytes),
        "kv": human_bytes(stage.kv_bytes),
        "memory": human_bytes(stage.memory_bytes),
        "free": human_bytes(stage.free_bytes),
        "step": time,
    }


def _described(
    found: StagePlan, offers: Offers, sizes: dict[str, Any], commands: list[str]
) -> dict[str, Any]:
    """The plan for programs; times and tokens/s are None where no rate in bytes is known."""
    known = offers.measured
    return {
        "model": found.model.name,
        "layers": len(found.model.layers),
        "hidden": sizes["hidden"],
        "lanes": found.model.lanes,
        "window": found.model.window,
        "ranges": found.ranges,
        "stages": [
            {**asdict(stage), "step_s": stage.step_s if known else None} for stage in found.stages
        ],
        "tokens_per_s_alone": found.tokens_per_s_alone if known else None,
        "tokens_per_s": found.tokens_per_s if known else None,
        "commands": commands,
    }


def _commands(context: CliContext, source: Path, found: StagePlan) -> list[str]:
    """What makes and loads the stages, or the whole model where one node can hold it."""
    name, count = found.model.name, len(found.stages)
    shown = quote(name if source.is_dir() else str(source))
    places = range(1, count + 1)
    if count == 1:
        made = [] if source.is_dir() else [f"model import {shown}"]
        loaded = [f"model load {quote(name)} {quote(found.stages[0].node)}"]
    else:
        made = [f"model split {shown} --layers {found.ranges}"]
        if not source.is_dir():
            made = [
                f"model import {shown} --stage {place}/{count} --layers {found.ranges}"
                for place in places
            ]
        loaded = [
            f"model load {quote(f'{name}.{place}of{count}')} {quote(stage.node)}"
            for place, stage in zip(places, found.stages, strict=True)
        ]
    return [context.command(each) for each in (*made, *loaded)]


def _said(found: StagePlan, offers: Offers, commands: list[str]) -> list[str]:
    """What the table does not say."""
    model, count = found.model, len(found.stages)
    texts = []
    if count == 1:
        texts.append(f"{model.name} fits on {found.stages[0].node} alone: it needs no stages")
    if offers.measured:
        texts.append(
            f"at most {found.tokens_per_s_alone:.1f} tokens/s for one stream and "
            f"{found.tokens_per_s:.1f} for {model.lanes}, without the time between stages"
        )
    else:
        texts.append("no node has measured a model that is on this machine: no speed is foretold")
    room = ", ".join(f"{each.node} {max(each.kv_bytes, _LEAST_KV)}" for each in found.stages)
    texts.append(f"in agent.toml, [worker]: lanes = {model.lanes}, and kv_bytes: {room}")
    if count > 1:
        texts.append("make the stages, put each into the models folder of its node, and load it:")
    return [*texts, *commands]
