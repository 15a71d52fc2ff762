"""`chaos`: strike this machine's own fleet under load and see that no stream is harmed."""

from __future__ import annotations

import json
import secrets

import click

from bus.client import Client
from bus.errors import NotFound, StartError
from head.cli.chaos_faults import KINDS, Kind, LocalFleet, known_kinds
from head.cli.chaos_report import figures, gap_table, is_sound
from head.cli.chaos_run import ChaosRun
from head.cli.chaos_streams import StreamLoad, greedy
from head.cli.context import CliContext, pass_context
from head.cli.output import note
from head.cli.supervision import Supervisor

_FAILED = 1
#: How long the last streams may take to end.
_FINISH_S = 120.0
_PROMPT = "Chaos stream number {number} tells of"


def _kinds(context: click.Context, parameter: click.Parameter, value: str) -> list[Kind]:
    names = [name for name in value.split(",") if name]
    unknown = [name for name in names if name not in KINDS]
    if unknown or not names:
        raise click.BadParameter(f"{', '.join(unknown) or 'none'}; there are {', '.join(KINDS)}.")
    return known_kinds(names)


@click.command()
@click.option(
    "--minutes", type=click.FloatRange(min=0.0), default=1.0, show_default=True, help="How long."
)
@click.option(
    "--kinds",
    callback=_kinds,
    default=",".join(KINDS),
    show_default=True,
    help="What to do, in turn, separated by commas.",
)
@click.option("--model", help="The model that is asked [default: the first that is ready].")
@click.option(
    "--streams", type=click.IntRange(1, 1024), default=8, show_default=True, help="At once."
)
@click.option(
    "--max-new", type=click.IntRange(8), default=256, show_default=True, help="Tokens of each."
)
@click.option(
    "--stop-s",
    type=click.FloatRange(min=0.1, max=20.0),
    default=2.0,
    show_default=True,
    help="Seconds that a stopped process stays so.",
)
@click.option("--yes", is_flag=True, help="Do not ask first.")
@pass_context
def chaos(
    context: CliContext,
    minutes: float,
    kinds: list[Kind],
    model: str | None,
    streams: int,
    max_new: int,
    stop_s: float,
    yes: bool,
) -> None:
    """Kill, stop and cut off this machine's services under load, and check every stream.

    Needs a fleet that `sfctl up` started here. Its processes are started again by supervisord, and
    stopped ones go on at the end, however that comes; requests of others feel what ours feel.
    """
    state = context.look()
    if not Supervisor(state).running():
        raise StartError("no services run here to strike; start them with: sfctl up")
    if not yes:
        where = f"the services of {state.path} for {minutes:g} minutes"
        click.confirm(f"This kills, stops and cuts off {where}. Go on?", abort=True, err=True)
    with context.client() as client:
        name = _model(client, model)
        fleet = LocalFleet(state, name, stop_s=stop_s)
        possible = [kind for kind in kinds if _is_possible(kind, fleet)]
        if not possible:
            raise StartError("nothing of it can be done here; name others with --kinds")
        prompts = [_PROMPT.format(number=number) for number in range(streams)]
        load = StreamLoad(
            client,
            greedy(client, name, prompts, max_new=max_new, exact=True),
            streams=streams,
            prompts=len(prompts),
            exact=True,
            name=f"chaos-{secrets.token_hex(4)}",
        )
        run = ChaosRun(client, fleet, load, name, note)
        note(f"asking {streams} prompts of {name} undisturbed")
        _strike(run, possible, 60 * minutes)
    if not is_sound(figures(run.strikes, load.tally)):
        click.get_current_context().exit(_FAILED)


def _strike(run: ChaosRun, kinds: list[Kind], seconds: float) -> None:
    """Learn what is to come, strike, and say what came of it, however far it went."""
    try:
        run.load.learn()
        try:
            run.run(kinds, seconds=seconds, least=len(kinds))
            run.load.finish(_FINISH_S)
        finally:
            _report(run)
    finally:
        # Also after Ctrl-C, or the streams would go on at the head.
        run.load.cancel()


def _is_possible(kind: Kind, fleet: LocalFleet) -> bool:
    why = ""
    if not (fleet.has_head if kind.role == "head" else fleet.nodes()):
        why = f"no {kind.role} of this fleet runs here"
    elif kind.way == "cut" and not fleet.may_cut:
        why = "the system lets only root cut a link of another process"
    if why:
        note(f"{kind.name} is left out: {why}")
    return not why


def _model(client: Client, named: str | None) -> str:
    ready = [
        str(model["name"])
        for model in client.models()
        if model["ready"] and model.get("kind") == "decoder"
    ]
    if named is None and ready:
        return ready[0]
    if named in ready and named is not None:
        return named
    what = f"{named} is not" if named else "no model is"
    raise NotFound(f"{what} ready to be asked for text; see: sfctl model ls")


def _report(run: ChaosRun) -> None:
    for line in gap_table(run.strikes):
        click.echo(line)
    for why in run.load.tally.said:
        note(why)
    click.echo(json.dumps(figures(run.strikes, run.load.tally)))
