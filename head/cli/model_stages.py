"""`model split`: make folders of a model's stages, each for a node that is to serve it."""

from __future__ import annotations

import click

from bus.errors import NotFound
from head.cli.context import CliContext, pass_context
from head.cli.model_store import MODEL_WORD, split_model
from head.cli.model_use import check_replaceable
from head.cli.output import note


@click.command("split")
@click.argument("name")
@click.option("--stages", type=int, metavar="N", help="So many, with as many layers each.")
@click.option("--layers", metavar="RANGES", help="Layers of each, such as 0-14,15-29.")
@pass_context
def model_split(context: CliContext, name: str, stages: int | None, layers: str | None) -> None:
    """Make a folder for each stage of a model of this machine: NAME.1of2, NAME.2of2.

    A stage is a range of layers, counted from 0. Each folder is served by a node of its own, or
    several; together they serve the model. What it takes of memory does not grow with the model.
    """
    if (stages is None) == (layers is None):
        raise click.UsageError("Give --stages N, or --layers with the layers of each stage.")
    state = context.state()
    folder = state.models / name
    if MODEL_WORD.match(name.lower()) is None or not folder.is_dir():
        raise NotFound(f"there is no model {name}; see: {context.command('model ls')}")
    count = stages or (layers or "").count(",") + 1
    for place in range(1, count + 1):
        check_replaceable(context, state, f"{name}.{place}of{count}")
    made = split_model(folder, state.models, stages, layers)
    for row in made:
        click.echo(row["path"])
        note(row["stage"])
    last = context.command(f"model load {made[-1]['name']} NODE")
    note(f"next: put each into the models folder of its node, and load it there: {last}")
