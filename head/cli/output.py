"""What the commands print: data on stdout, notes and progress on stderr.

Tables have rules and colour on a terminal and are plain columns in a pipe, with the same figures;
JSON is the data as it came. Colour follows NO_COLOR (rich honours it).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

FORMATS = ("table", "json")
#: Wider than any table, to measure one.
_ANY_WIDTH = 10_000
#: Totals above this are bytes, not items.
_BYTES_FROM = 1 << 20
#: Seconds of the units of an age.
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

Report = Callable[[str, int, int], None]
Row = Mapping[str, Any]
F = TypeVar("F", bound=Callable[..., Any])


def format_option(command: F) -> F:
    """The `-o` option of commands that print data."""
    made = click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How to print it.",
    )
    return made(command)


def one_line(text: str) -> str:
    """A text without line breaks and control characters, which could forge a second line."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


def note(text: str) -> None:
    """Tell the person something that is no data."""
    click.echo(one_line(text), err=True)


def print_error(text: str, notes: Sequence[str] = ()) -> None:
    """The one line that a failed command prints, and what else helps, after it."""
    click.echo(f"error: {one_line(text)}", err=True)
    for line in notes:
        note(line)


def print_json(data: object) -> None:
    """Data for programs."""
    click.echo(json.dumps(data, ensure_ascii=False, indent=2))


def print_rows(rows: Sequence[Row], columns: Sequence[str], form: str) -> None:
    """A list of maps: all of them as JSON, or the named columns as a table."""
    if form == "json":
        print_json(list(rows))
        return
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    if sys.stdout.isatty() and (table := fitting_table(columns, cells, Console().width)):
        Console().print(table)
        return
    for line in plain_table(columns, cells):
        click.echo(line)


def fitting_table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], width: int
) -> Table | None:
    """A table with rules; None when it would have to cut cells to be no wider than `width`."""
    table = Table(*columns)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(width=_ANY_WIDTH)
    return table if console.measure(table).maximum <= width else None


def plain_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of columns that are two spaces apart, the first line naming them."""
    lines = [[column.upper() for column in columns], *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_cell(item)}" for key, item in value.items()) or "-"
    return one_line(str(value))


def human_age(seconds: float) -> str:
    """A time span in its largest unit."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


class _Amount(ProgressColumn):
    """Bytes for long steps, items for short ones."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes, self._items = DownloadColumn(), MofNCompleteColumn()

    def render(self, task: Task) -> Text:
        large = task.total is not None and task.total >= _BYTES_FROM
        return (self._bytes if large else self._items).render(task)


@contextmanager
def progress_bars() -> Iterator[Report]:
    """Bars on a terminal's stderr, nothing elsewhere; gives `report(step, done, total)`."""
    if not sys.stderr.isatty():
        yield lambda step, done, total: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        _Amount(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as progress:
        tasks: dict[str, Any] = {}

        def report(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(step, total=total)
            progress.update(tasks[step], completed=done, total=total)

        yield report
