"""`backup` and `restore`: the head's store, copied while it runs, put back while it does not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from bus.errors import NoHead, NotFound
from head.backups import back_up
from head.cli.context import CliContext, pass_context
from head.cli.output import format_option, note, print_json
from head.store_file import FILE
from head.store_operations import MAX_KEPT
from head.store_restore import Restored, restore

#: What a copy of a large store may take.
BACKUP_TIMEOUT_S = 600.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--keep",
    type=click.IntRange(1, MAX_KEPT),
    help="Remove older backups from the store's own folder, down to so many.",
)
@format_option
@pass_context
def backup(context: CliContext, file: Path | None, keep: int | None, form: str) -> None:
    """Copy the head's store into FILE, also while the head runs.

    Without FILE it goes into store/backups of the state folder. It has prompts and answers, but no
    keys: those are in keys/ of the state folder.
    """
    if file is not None and keep:
        raise click.UsageError("--keep counts what is in the store's own folder; leave FILE out.")
    target = file.absolute() if file is not None else None
    made = _by_head(context, target, keep or 0)
    if made is None:
        made = _without_head(context, target, keep or 0)
    if form == "json":
        print_json(made)
        return
    click.echo(made["file"])
    note(
        f"{made['bytes']} bytes, schema {made['schema']}, head {made['head']}, start "
        f"{made['boot']}; put it back with: {context.command('restore')} {made['file']}"
    )
    if made["removed"]:
        note(f"{made['removed']} older ones were removed")


@click.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Also a backup of another head.")
@format_option
@pass_context
def restore_command(context: CliContext, file: Path, force: bool, form: str) -> None:
    """Put the backup FILE in the place of the head's store; the head must be down.

    What was there is moved aside, never deleted. Answers that had not ended when the backup was
    made end with an error, and what came after it is not there.
    """
    state = context.state()
    done = restore(state.store, file.absolute(), wall_s=time.time(), force=force)
    if form == "json":
        print_json(_restored(done))
        return
    note(
        f"restored: schema {done.facts.schema}, head {done.facts.head}, start {done.facts.boot}; "
        f"start it with: {context.command('up')}"
    )
    if done.moved_to is not None:
        note(f"what was there is in {done.moved_to}")
    if done.revoked:
        note(f"revoked since the backup, and still: {', '.join(done.revoked)}")
    if done.moved_to is not None and not done.knows_revoked:
        note(
            "which nodes were revoked since the backup is not known; look with "
            f"{context.command('node ls')} and revoke them again"
        )


def _by_head(context: CliContext, target: Path | None, keep: int) -> dict[str, Any] | None:
    """Have the head make it; None when none runs here."""
    try:
        with context.client() as client:
            named = {} if target is None else {"file": str(target)}
            limit = context.timeout_s or BACKUP_TIMEOUT_S
            return client.operation("backup", timeout_s=limit, keep=keep, **named)
    except NoHead:
        if context.names_address:
            raise
        return None


def _without_head(context: CliContext, target: Path | None, keep: int) -> dict[str, Any]:
    store = context.look().store / FILE
    if not store.is_file():
        raise NotFound(f"there is no store at {store}; no head was ever started here")
    return back_up(store, target, keep=keep, wall_s=time.time()).to_map()


def _restored(done: Restored) -> dict[str, Any]:
    return {
        "schema": done.facts.schema,
        "head": done.facts.head,
        "boot": done.facts.boot,
        "moved_to": str(done.moved_to) if done.moved_to else None,
        "revoked": list(done.revoked),
        "knows_revoked": done.knows_revoked,
    }
