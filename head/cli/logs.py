"""`logs`: what the services of this machine said."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator
from pathlib import Path

import click

from bus.errors import NotFound
from bus.state import StateFolder
from head.cli.agents import local_names
from head.cli.context import CliContext, pass_context
from head.cli.output import one_line

EXIT_INTERRUPTED = 130
_FOLLOW_EVERY_S = 0.2
#: What is shown when nothing was named: the first of these that there is.
_DEFAULTS = ("head", "node-1")


@click.command()
@click.argument("name", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is added.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True)
@pass_context
def logs(context: CliContext, name: str | None, follow: bool, lines: int) -> None:
    """Print the log of NAME: head, node-1, a node's identity, or supervisord.

    Without NAME it is the head's, and on a machine that had none, that of node-1.
    """
    file = find_log(context.look(), name)
    try:
        for line in read_log(file, lines, follow=follow):
            click.echo(line)
    except KeyboardInterrupt:
        # The way to end it, and nothing to complain of.
        click.get_current_context().exit(EXIT_INTERRUPTED)


def find_log(state: StateFolder, name: str | None) -> Path:
    """The log that a name, or none, means.

    Raises:
        NotFound: there is none; says which there are.
    """
    have = sorted(file.stem for file in state.log.glob("*.log")) if state.log.is_dir() else []
    if name is None:
        name = next((each for each in _DEFAULTS if each in have), _DEFAULTS[0])
    stem = name if name in have else local_names(state).get(name, name)
    if stem not in have:
        there = ", ".join(have) or "none; start with: sfctl up"
        raise NotFound(f"there is no log of {name}; there is: {there}")
    return state.log / f"{stem}.log"


def read_log(file: Path, lines: int, *, follow: bool) -> Generator[str, None, None]:
    """The last lines of a log, and with `follow` those that are added, also after a rotation."""
    opened = file.open(errors="replace")
    try:
        yield from map(one_line, deque(opened, maxlen=lines))
        part = ""
        while follow:
            part += opened.readline()
            if part.endswith("\n"):
                yield one_line(part)
                part = ""
            elif file.exists() and file.stat().st_ino != os.fstat(opened.fileno()).st_ino:
                opened.close()
                opened = file.open(errors="replace")
            else:
                # A file gives no sign of growth that could be waited for everywhere.
                time.sleep(_FOLLOW_EVERY_S)
    finally:
        opened.close()
