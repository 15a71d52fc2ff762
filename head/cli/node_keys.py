"""`node approve`, `revoke`, `forget` and `enrolment`: who may be in the fleet."""

from __future__ import annotations

from typing import Any

import click

from head.cli.context import CliContext, pass_context
from head.cli.node_drain import identity_of
from head.cli.output import format_option, note, print_json, print_rows

_KEY_COLUMNS = ("identity", "state", "key", "host")


@click.command("approve")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All that wait.")
@format_option
@pass_context
def node_approve(context: CliContext, name: str | None, everything: bool, form: str) -> None:
    """Let a node that waits join.

    NAME is its identity, its key's fingerprint, or the name of an agent of this machine.

    Compare the fingerprint with what the node's log says.
    """
    if (name is None) != everything:
        raise click.UsageError("Give one of NAME and --all.")
    asked: dict[str, Any] = {"all": True} if name is None else {"name": identity_of(context, name)}
    with context.client() as client:
        approved = client.operation("node.approve", **asked)["approved"]
    print_rows(approved, _KEY_COLUMNS, form)
    note("approved nodes link by themselves within 10 s" if approved else "no node waits")


@click.command("revoke")
@click.argument("name")
@format_option
@pass_context
def node_revoke(context: CliContext, name: str, form: str) -> None:
    """Lock a node out: its key is refused, its link ends, its sessions move."""
    with context.client() as client:
        done = client.operation("node.revoke", name=identity_of(context, name))
    if form == "json":
        print_json(done)
    else:
        print_rows(done["revoked"], _KEY_COLUMNS, form)
    if done["now_approves"]:
        note(f"from now on new nodes wait for approval; {_way_back(context)}")
    note(
        "whoever used the node may still have the fleet token; replace it with: "
        f"{context.command('token rotate')}"
    )


@click.command("forget")
@click.argument("name")
@pass_context
def node_forget(context: CliContext, name: str) -> None:
    """Forget a node that is down, with its keys: it may come again as a new one."""
    with context.client() as client:
        done = client.operation("node.forget", name=identity_of(context, name))
    note(f"forgotten: {', '.join(done['forgotten'])}")


@click.command("enrolment")
@click.option("--restore", is_flag=True, help="Back to what is configured, after a revocation.")
@format_option
@pass_context
def node_enrolment(context: CliContext, restore: bool, form: str) -> None:
    """Show what happens to nodes that are not known yet: open, approve or closed."""
    with context.client() as client:
        found = client.operation("node.enrolment", restore=restore)
    if form == "json":
        print_json(found)
        return
    click.echo(found["way"])
    if found["way"] != found["configured"]:
        note(f"a revocation set it, {found['configured']} is configured; {_way_back(context)}")


def _way_back(context: CliContext) -> str:
    return f"to take them as configured again: {context.command('node enrolment --restore')}"
