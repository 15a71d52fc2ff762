"""`session`: the sessions that the head keeps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from bus.client import Client
from head.cli.context import CliContext, pass_context
from head.cli.output import format_option, human_age, note, print_json, print_rows

_COLUMNS = ("session", "model", "state", "finish", "tokens", "answer", "age")
_PAGE = 500


@click.group()
def session() -> None:
    """Look at the sessions that the head keeps; `attach` reads one's answer."""


@session.command("ls")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=50,
    show_default=True,
    help="Show so many at most.",
)
@format_option
@pass_context
def session_ls(context: CliContext, limit: int, form: str) -> None:
    """List sessions, the newest first; those that ended stay for their retention.

    TOKENS are of the context, ANSWER those of the latest answer.
    """
    with context.client() as client:
        rows = list(islice(listed_sessions(client, min(limit + 1, _PAGE)), limit + 1))
    shown = rows[:limit]
    if form == "json":
        print_json(shown)
    else:
        print_rows([_row(each) for each in shown], _COLUMNS, form)
    if len(rows) > limit:
        note(
            f"there are older ones; show more with: {context.command(f'session ls -n {limit * 4}')}"
        )


def listed_sessions(client: Client, page: int) -> Iterator[dict[str, Any]]:
    """All sessions, asked of the head page by page as they are taken."""
    after: dict[str, Any] = {}
    while True:
        found = client.operation("session.ls", limit=page, **after)
        yield from found["sessions"]
        if found["next"] is None:
            return
        after = {"after": found["next"]}


def _row(session: dict[str, Any]) -> dict[str, Any]:
    return {**session, "answer": session["answer_tokens"], "age": human_age(session["age_s"])}
