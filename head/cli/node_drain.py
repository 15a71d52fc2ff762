"""`node drain`, `undrain` and `label`: take a node out of service without ending a stream."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

import click

from bus.client import Client
from bus.errors import Invalid, TimedOut
from head.cli.agents import local_names
from head.cli.context import CliContext, pass_context
from head.cli.output import format_option, note, print_json, print_rows

#: Streams may run as long; those that another node can take move at once.
WAIT_S = 600.0
_ASK_EVERY_S = 0.2
_COLUMNS = ("name", "state", "generations", "stays")
#: States in which nothing runs on a node.
_EMPTY = frozenset({"drained", "down", "left"})


@click.command("drain")
@click.argument("name")
@click.option("--wait", is_flag=True, help="Return once nothing runs there any more.")
@format_option
@pass_context
def node_drain(context: CliContext, name: str, wait: bool, form: str) -> None:
    """Give a node no more work, and move its streams to others; it is then `drained`.

    A stream that no other node can take stays until it ends. Holds over restarts of node and head,
    until `sfctl node undrain`. NAME is an identity, or the name of an agent of this machine.
    """
    identity = identity_of(context, name)
    with context.client() as client:
        done = client.operation("node.drain", name=identity)
        if wait:
            done = _await_empty(context, client, done)
    _show(done, form)
    if done["state"] == "draining":
        note(f"{_left(done)}; to wait for the end: {_typed(context, 'drain --wait', identity)}")
    note(f"to give it work again: {_typed(context, 'undrain', identity)}")


@click.command("undrain")
@click.argument("name")
@format_option
@pass_context
def node_undrain(context: CliContext, name: str, form: str) -> None:
    """Give a node work again, after `sfctl node drain`."""
    identity = identity_of(context, name)
    with context.client() as client:
        _show(client.operation("node.undrain", name=identity), form)


@click.command("label")
@click.argument("name")
@click.argument("labels", metavar="KEY=VALUE...", nargs=-1, required=True)
@format_option
@pass_context
def node_label(context: CliContext, name: str, labels: Sequence[str], form: str) -> None:
    """Note something about a node, such as rack=3; KEY= removes it.

    `sfctl node ls` shows it. Holds over restarts of node and head.
    """
    changes = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key or not equals:
            raise click.UsageError(f"{label!r} is no KEY=VALUE.")
        changes[key] = value
    identity = identity_of(context, name)
    with context.client() as client:
        done = client.operation("node.label", name=identity, labels=changes)
    if form == "json":
        print_json(done)
    else:
        print_rows([{**done, "labels": shown_labels(done)}], ("name", "labels"), form)


def shown_labels(node: Mapping[str, Any]) -> str:
    """The labels of a node, for a table."""
    return " ".join(f"{key}={value}" for key, value in node.get("labels", {}).items())


def identity_of(context: CliContext, name: str) -> str:
    """The identity of an agent of this machine, or the name itself."""
    here = {} if context.names_address else local_names(context.look())
    named = {local: identity for identity, local in here.items()}
    return name if name in here else named.get(name, name)


def _typed(context: CliContext, command: str, identity: str) -> str:
    return context.command(f"node {command} {quote(identity)}")


def _show(done: Mapping[str, Any], form: str) -> None:
    if form == "json":
        print_json(done)
    else:
        print_rows([done], _COLUMNS, form)


def _left(done: Mapping[str, Any]) -> str:
    count = done["generations"]
    streams = "1 stream is" if count == 1 else f"{count} streams are"
    if jobs := done.get("jobs", 0):
        streams = f"{count} streams and {jobs} jobs are"
    return f"{streams} on {done['name']} still" + (f": {done['stays']}" if done["stays"] else "")


def _await_empty(context: CliContext, client: Client, first: dict[str, Any]) -> dict[str, Any]:
    """Ask until nothing runs on a node.

    Args:
        first: what `node.drain` answered.

    Raises:
        Invalid: it was given work again.
        TimedOut: it was not in time.
    """
    limit_s = context.timeout_s or WAIT_S
    until = time.monotonic() + limit_s
    done, identity = first, first["name"]
    while done["state"] not in _EMPTY:
        if not done["draining"]:
            raise Invalid(f"node {identity} was given work again meanwhile", param="name")
        if time.monotonic() >= until:
            raise TimedOut(
                f"after {limit_s:g} s {_left(done)}; it gets no more work and they go on: allow "
                f"more with --timeout, or undo it: {_typed(context, 'undrain', identity)}"
            )
        # Streams end when they do; asking again is how to await it.
        time.sleep(_ASK_EVERY_S)
        known = {node["identity"]: node for node in client.nodes()}
        done = {**done, **known.get(identity, {"state": "down"})}
    return {key: value for key, value in done.items() if key in first}
