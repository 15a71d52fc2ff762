"""`token`: the secret that nodes join by."""

from __future__ import annotations

from pathlib import Path

import click

from bus.errors import StartError
from bus.keys import fingerprint, load_or_create_static_key, new_token
from bus.secret_files import create_secret_file, make_private_folder, replace_private_file
from head.cli.context import CliContext, pass_context
from head.cli.output import format_option, note, print_json

HEAD_KEY = "head.key"
FLEET_TOKEN = "fleet.token"


def make_token(keys: Path, *, rotate: bool = False) -> tuple[Path, str]:
    """Make the fleet token, and the head's key when there is none.

    Args:
        keys: the folder of keys.
        rotate: replace a token that is there.

    Returns:
        The token's file and the fingerprint of the head's key. The token itself is only in the
        file.

    Raises:
        StartError: there is a token and `rotate` is not set.
        TokenRefused: the head's key is damaged or open to others.
    """
    make_private_folder(keys)
    file = keys / FLEET_TOKEN
    pair = load_or_create_static_key(keys / HEAD_KEY)
    if rotate:
        replace_private_file(file, new_token(pair.public))
    else:
        try:
            create_secret_file(file, new_token(pair.public))
        except FileExistsError:
            raise StartError(
                f"there is a fleet token at {file}; nodes that have it would be locked out: "
                "use --rotate to replace it"
            ) from None
    return file, fingerprint(pair.public)


@click.group()
def token() -> None:
    """Make the secret that nodes join by."""


@token.command("new")
@click.option("--rotate", "--force", "rotate", is_flag=True, help="Replace the token there is.")
@format_option
@pass_context
def token_new(context: CliContext, rotate: bool, form: str) -> None:
    """Make the fleet token and the head's key; prints where they are, never the token."""
    file, name = make_token(context.state().keys, rotate=rotate)
    if form == "json":
        print_json({"file": str(file), "head_fingerprint": name})
    else:
        click.echo(f"token file:       {file}")
        click.echo(f"head fingerprint: {name}")
    note("copy the token file to every other node's machine; whoever has it can join the fleet")
