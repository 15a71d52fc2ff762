"""`token`: the secret that nodes join by, and how it is replaced while the fleet runs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bus.errors import NoHead, StartError, SuperfluidError
from bus.keys import fingerprint, load_or_create_static_key, load_token, new_token
from bus.secret_files import create_secret_file
from bus.state import StateFolder
from bus.token_files import previous_file, retire_token, rotate_token
from head.cli.agents import plan_agents
from head.cli.context import CliContext, pass_context
from head.cli.machine import agents_configured, configured_names, head_was_here
from head.cli.output import format_option, human_age, note, print_json, print_rows
from head.cli.preflight import head_config
from head.link_identity import KEY_FILE, token_file

_COLUMNS = ("token", "id", "age", "linked nodes", "file")


def make_token(state: StateFolder, file: Path) -> str:
    """Make a fleet token, and the head's key when there is none.

    Args:
        state: has the key.
        file: where the token goes; it is in no other place.

    Returns:
        The fingerprint of the head's key.

    Raises:
        StartError: there is a token.
        TokenRefused: the head's key is damaged or open to others.
    """
    pair = load_or_create_static_key(state.keys / KEY_FILE)
    try:
        create_secret_file(file, new_token(pair.public))
    except FileExistsError:
        raise StartError(
            f"there is a fleet token at {file}; to replace it without locking nodes out: "
            "sfctl token rotate"
        ) from None
    return fingerprint(pair.public)


@click.group()
def token() -> None:
    """Make and replace the secret that nodes join by."""


_force_option = click.option(
    "--force", is_flag=True, help="Also where agents are configured to join a head elsewhere."
)


@token.command("new")
@_force_option
@format_option
@pass_context
def token_new(context: CliContext, force: bool, form: str) -> None:
    """Make the fleet token and the head's key; prints where they are, never the token."""
    state = context.state()
    file = fleet_token_file(state)
    _refuse_on_node(context, state, file, force)
    name = make_token(state, file)
    if form == "json":
        print_json({"file": str(file), "head_fingerprint": name})
    else:
        click.echo(f"token file:       {file}")
        click.echo(f"head fingerprint: {name}")
    note("copy the token file to every other node's machine; whoever has it can join the fleet")


@token.command("rotate")
@_force_option
@format_option
@pass_context
def token_rotate(context: CliContext, force: bool, form: str) -> None:
    """Make a new fleet token; the one before stays valid until it is retired.

    A head that runs takes both within seconds.
    """
    state = context.state()
    file = fleet_token_file(state)
    _refuse_on_node(context, state, file, force)
    pair = load_or_create_static_key(state.keys / KEY_FILE)
    rotate_token(file, new_token(pair.public))
    _show(_tokens(file, _linked(context)), form)
    note(
        "copy the token file to every other node's machine, which need not be restarted; then end "
        f"the previous one with: {context.command('token retire')}"
    )


@token.command("retire")
@pass_context
def token_retire(context: CliContext) -> None:
    """End the previous fleet token; nodes that have no newer one are cut off."""
    file = fleet_token_file(context.look())
    previous = next(
        (row for row in _tokens(file, _linked(context)) if row["token"] != "current"), {}
    )
    retire_token(file)
    note("the previous token is retired; a head that runs ends its links within seconds")
    if names := previous.get("linked nodes"):
        note(
            f"linked with it last: {', '.join(names)}; one that does not come back needs a copy of "
            f"{file}"
        )


@token.command("ls")
@format_option
@pass_context
def token_ls(context: CliContext, form: str) -> None:
    """List the valid fleet tokens by id and age, never the secrets."""
    _show(_tokens(fleet_token_file(context.look()), _linked(context)), form)


def _refuse_on_node(context: CliContext, state: StateFolder, file: Path, force: bool) -> None:
    """A token that is made on a node's machine is of no fleet, and locks the node out of its own.

    Raises:
        StartError: agents here join a head elsewhere, and none was ever here.
    """
    if force or head_was_here(state) or not agents_configured(state):
        return
    heads = [plan.head for plan in plan_agents(state, configured_names(state)) if plan.head]
    if heads:
        raise StartError(
            f"agents here are configured for a head elsewhere ({heads[0]}) and none was ever "
            f"started here; copy that head's token file to {file}. If a head is to run here all "
            "the same, add --force"
        )


def fleet_token_file(state: StateFolder) -> Path:
    """Where the fleet token of a state folder is, or goes."""
    return token_file(head_config(state, os.environ).fleet, state)


def _tokens(file: Path, linked: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """One map per valid token.

    Raises:
        TokenRefused: one can not be used.
    """
    rows = []
    for which, path in (("current", file), ("previous", previous_file(file))):
        if which == "current" or os.path.lexists(path):
            name = load_token(path).shown_id
            age_s = max(0.0, time.time() - path.stat().st_mtime)
            rows.append(
                {
                    "token": which,
                    "id": name,
                    "age_s": round(age_s),
                    "linked nodes": linked.get(name, []),
                    "file": str(path),
                }
            )
    return rows


def _linked(context: CliContext) -> dict[str, list[str]]:
    """From a token's id to the nodes that linked with it last; empty where no head answers."""
    try:
        with context.client() as client:
            keys = client.operation("node.enrolment").get("keys", [])
    except NoHead:
        return {}
    except SuperfluidError as error:
        note(f"which nodes use which token is not known: {error.message}")
        return {}
    found: dict[str, list[str]] = {}
    for key in keys:
        if key.get("token"):
            found.setdefault(key["token"], []).append(key["identity"])
    return found


def _show(rows: list[dict[str, Any]], form: str) -> None:
    if form == "json":
        print_json(rows)
        return
    print_rows([{**row, "age": human_age(row["age_s"])} for row in rows], _COLUMNS, form)
