"""`session`: the sessions that the head keeps, and what can be done with one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import click

from bus.client import Client
from head.cli.context import CliContext, pass_context
from head.cli.output import format_option, human_age, note, print_json, print_rows
from head.cli.prompts import text_argument

_COLUMNS = ("session", "model", "state", "finish", "tokens", "answer", "age")
_PAGE = 500


@click.group()
def session() -> None:
    """Look at sessions, park and resume them; `attach` reads one's answer."""


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


_SESSION = click.argument("session", type=text_argument)


@session.command("show")
@_SESSION
@format_option
@pass_context
def session_show(context: CliContext, session: str, form: str) -> None:
    """Show one SESSION: its state, node and tokens."""
    with context.client() as client:
        shown = client.open_session(session).info()
    if form == "json":
        print_json(shown)
    else:
        print_rows([{"what": name, "is": shown[name]} for name in shown], ("what", "is"), form)


@session.command("park")
@_SESSION
@pass_context
def session_park(context: CliContext, session: str) -> None:
    """Free the node of SESSION and keep the session; a turn that runs is cancelled.

    It takes no turn until `session resume`. Fine for one that is parked.
    """
    with context.client() as client:
        client.open_session(session).park()
    note(f"session {session} is parked; go on with: {context.command(f'session resume {session}')}")


@session.command("resume")
@_SESSION
@format_option
@pass_context
def session_resume(context: CliContext, session: str, form: str) -> None:
    """Place a parked SESSION on a node again, maybe another one.

    REUSED are the tokens of its context that need not be computed again there.
    """
    with context.client() as client:
        resumed = client.open_session(session).resume()
    if form == "json":
        print_json(asdict(resumed))
        return
    where = f"on {resumed.node}" if resumed.node else "on no node yet; its next turn finds one"
    why = f" ({resumed.problem})" if resumed.problem else ""
    note(
        f"session {session} is {where}; {resumed.reused} of {resumed.tokens} tokens need not be "
        f"computed again{why}"
    )


@session.command("fork")
@_SESSION
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    help="Take only so many tokens from the beginning [default: all].",
)
@pass_context
def session_fork(context: CliContext, session: str, offset: int | None) -> None:
    """Make a new session that begins with the context of SESSION; prints its name."""
    with context.client() as client:
        click.echo(client.open_session(session).fork(offset).id)


@session.command("finish")
@_SESSION
@pass_context
def session_finish(context: CliContext, session: str) -> None:
    """End SESSION; it stays readable for its retention. Fine for one that has ended."""
    with context.client() as client:
        client.open_session(session).finish()
    note(f"session {session} has ended; read it with: {context.command(f'attach {session}')}")


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
