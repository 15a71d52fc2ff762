"""`model load` and `model unload`: which models the nodes serve, while they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console

from bus.client import Client
from bus.errors import ModelIncomplete, NotFound, SuperfluidError, TimedOut
from head.cli.agents import local_names
from head.cli.context import CliContext, pass_context
from head.cli.nodes import LIVE, model_problem, node_names
from head.cli.output import format_option, note, one_line, print_rows

#: A large model takes minutes to load; streams may be given as long to end.
WAIT_S = 600.0
_ASK_EVERY_S = 0.2
_COLUMNS = ("node", "model", "phase", "device")
_GONE = "unloaded"


@click.command("load")
@click.argument("name", metavar="MODEL")
@click.argument("nodes", metavar="[NODE]...", nargs=-1)
@click.option("--all", "everywhere", is_flag=True, help="On every node that is up.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
@format_option
@pass_context
def model_load(
    context: CliContext,
    name: str,
    nodes: Sequence[str],
    everywhere: bool,
    no_wait: bool,
    form: str,
) -> None:
    """Have nodes serve one more of the models that lie on them, also after a restart.

    NODE is an identity, or the name of an agent of this machine.
    """
    with context.client() as client:
        chosen = _chosen(context, client, nodes, everywhere)
        _ask_all(client, "model.load", chosen, name)
        rows = _await(context, client, chosen, name, "" if no_wait else "ready")
        listed = [model for model in client.models() if model["name"] == name]
    print_rows(rows, _COLUMNS, form)
    for model in listed:
        if model["nodes"] and not model["ready"]:
            note(model_problem(model, context.command))


@click.command("unload")
@click.argument("name", metavar="MODEL")
@click.argument("nodes", metavar="[NODE]...", nargs=-1)
@click.option("--all", "everywhere", is_flag=True, help="On every node that is up.")
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(0.0, 86_400.0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Streams there may go on so long before they move to other nodes.",
)
@click.option("--no-wait", is_flag=True, help="Do not wait until it is gone.")
@format_option
@pass_context
def model_unload(
    context: CliContext,
    name: str,
    nodes: Sequence[str],
    everywhere: bool,
    grace_s: float,
    no_wait: bool,
    form: str,
) -> None:
    """Have nodes serve a model no more, also after a restart; its files stay.

    NODE is an identity, or the name of an agent of this machine.
    """
    with context.client() as client:
        chosen = _chosen(context, client, nodes, everywhere)
        _ask_all(client, "model.unload", chosen, name, grace_s=grace_s)
        rows = _await(context, client, chosen, name, "" if no_wait else _GONE)
        left = [one for one in client.models() if one["name"] == name and one["nodes"]]
    print_rows(rows, _COLUMNS, form)
    if not left:
        note(f"no node serves {name} now; requests for it are refused until one does")


# --- which nodes --------------------------------------------------------------------------------


def _chosen(
    context: CliContext, client: Client, names: Sequence[str], everywhere: bool
) -> list[str]:
    """Identities of the nodes that were named, or of all that are up."""
    if bool(names) == everywhere:
        raise click.UsageError("Give NODE (see: sfctl node ls) or --all.")
    known = {node["identity"]: node for node in client.nodes()}
    if everywhere:
        up = [identity for identity, node in known.items() if node["state"] in LIVE]
        if not up:
            raise NotFound(f"no node is up; start one: {context.command('up')}")
        return up
    here = {} if context.names_address else local_names(context.look())
    by_local_name = {local: identity for identity, local in here.items()}
    # What the head does not know it says itself.
    return list(
        dict.fromkeys(name if name in known else by_local_name.get(name, name) for name in names)
    )


def _ask_all(client: Client, op: str, nodes: Sequence[str], model: str, **options: float) -> None:
    """Tell every node; of several that refuse, the first is the error and the rest are noted.

    An unload may be of a model that some of the nodes do not know, as long as one does.

    Raises:
        SuperfluidError: one refused.
    """
    refused: list[SuperfluidError] = []
    for node in nodes:
        try:
            client.operation(op, node=node, model=model, **options)
        except SuperfluidError as error:
            refused.append(error)
    unknown = [each for each in refused if isinstance(each, NotFound) and each.param == "model"]
    if op == "model.unload" and len(nodes) > len(refused) == len(unknown):
        return
    for other in refused[1:]:
        note(other.message)
    if refused:
        raise refused[0]


# --- waiting ------------------------------------------------------------------------------------


def _await(
    context: CliContext, client: Client, nodes: Sequence[str], model: str, phase: str
) -> list[dict[str, Any]]:
    """Ask until the model has this phase on every node; an empty one is not waited for.

    Raises:
        ModelIncomplete: it should become ready and does not load.
        TimedOut: it was not in time.
    """
    limit_s = context.timeout_s or WAIT_S
    until = time.monotonic() + limit_s
    with _status() as show:
        while True:
            rows = _rows(client, nodes, model)
            others = [row for row in rows if phase and row["phase"] != phase]
            if not others:
                return rows
            for row in others:
                if phase == "ready" and row["phase"] == "failed":
                    raise _not_loaded(context, row)
            waiting = "; ".join(map(_told, others))
            if time.monotonic() >= until:
                raise TimedOut(
                    f"after {limit_s:g} s {waiting}; it goes on: see sfctl node ls, or allow more "
                    "with --timeout"
                )
            show(waiting)
            # What a node serves is a figure of another process; asking again is how to await it.
            time.sleep(_ASK_EVERY_S)


def _not_loaded(context: CliContext, row: Mapping[str, Any]) -> ModelIncomplete:
    node, model = row["node"], row["model"]
    return ModelIncomplete(
        f"{model} does not load on {node}: {row['problem']}; {node} tries it again, or take it off "
        f"with: {context.command(f'model unload {model} {node}')}",
        details={"node": node, "model": model},
    )


def _rows(client: Client, nodes: Sequence[str], model: str) -> list[dict[str, Any]]:
    """A line for each node: what it serves of the model now."""
    known = {node["identity"]: node for node in client.nodes()}
    return [_row(name, known.get(name, {}), model) for name in nodes]


def _row(name: str, node: Mapping[str, Any], model: str) -> dict[str, Any]:
    found: Mapping[str, Any] = next(
        (each for each in node.get("models", []) if model in node_names(each)), {}
    )
    # A last stage waits for others then, of which this node knows nothing.
    is_loaded = (found.get("stage") or {}).get("loaded", False)
    phase = "ready" if is_loaded else found.get("phase", _GONE)
    if node.get("state") not in LIVE:
        phase = f"on a node that is {node.get('state', 'unknown')}"
    return {
        "node": name,
        "model": model,
        "phase": phase,
        "device": found.get("device", ""),
        "problem": found.get("problem", ""),
        "in_flight": found.get("in_flight", 0),
    }


def _told(row: Mapping[str, Any]) -> str:
    """What is waited for, such as `toy is loading on n1`."""
    streams = f" ({row['in_flight']} streams)" if row["in_flight"] else ""
    return f"{row['model']} is {row['phase']} on {row['node']}{streams}"


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """A line on a terminal's stderr that says what is waited for; nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(one_line(text))
