"""`attach`: read an answer again, or go on reading one that runs."""

from __future__ import annotations

import click

from bus.errors import NodeLost, SuperfluidError
from head.cli.chat import print_stream, summary
from head.cli.context import CliContext, pass_context
from head.cli.output import format_option, note, print_json
from head.cli.prompts import text_argument


@click.command()
@click.argument("session", type=text_argument)
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Tokens to leave out from the beginning.",
)
@format_option
@pass_context
def attach(context: CliContext, session: str, offset: int, form: str) -> None:
    """Print the answer of SESSION, and what still comes while it runs.

    Ctrl-C stops the answer, as it does in `run`.
    """
    with context.client() as client:
        call = client.attach(session=session, offset=offset)
        if form == "json":
            print_json(call.result().to_dict())
            return
        try:
            answer = print_stream(call)
        except SuperfluidError:
            if call.text:
                click.echo()
            raise
        click.echo()
        note(summary(answer))


def kept_text_hint(context: CliContext, error: SuperfluidError) -> str:
    """How to read what came before a node was lost; empty for other errors."""
    session = error.details.get("session")
    if not isinstance(error, NodeLost) or not isinstance(session, str):
        return ""
    return f"what came so far: {context.command(f'attach {session}')}"
