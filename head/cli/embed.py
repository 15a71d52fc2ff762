"""`embed`: vectors of texts, a line of JSON each."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import click

from bus.client import Client
from bus.errors import Invalid, SuperfluidError
from head.cli.context import CliContext, pass_context
from head.cli.prompts import text_argument

#: Texts, and bytes of them, of one request.
_BATCH_TEXTS = 256
_BATCH_BYTES = 1024 * 1024
_PLACE = re.compile(r"input\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class _Line:
    file: str
    line: int
    text: str


@click.command()
@click.argument("model", type=text_argument)
@click.argument("files", nargs=-1, type=click.File("rb"))
@click.option("--whole", is_flag=True, help="Take each file as one text, not each of its lines.")
@click.option("--pooling", type=click.Choice(("mean", "cls")), help="[default: as trained]")
@click.option("--normalize/--raw", default=None, help="Vectors of length 1, or not.")
@pass_context
def embed(
    context: CliContext,
    model: str,
    files: Sequence[BinaryIO],
    *,
    whole: bool,
    pooling: str | None,
    normalize: bool | None,
) -> None:
    """Print the vectors that MODEL, an encoder, makes of the lines of FILES, or of stdin.

    Each vector is a line of JSON with `file`, `line` (from 1) and `embedding`. Blank lines have
    none.
    """
    lines = _lines(files or (sys.stdin.buffer,), whole=whole)
    options: dict[str, Any] = {"pooling": pooling or "", "normalize": normalize}
    with context.client() as client:
        for batch in _batches(lines):
            for line, vector in zip(batch, _vectors(client, model, batch, options), strict=True):
                shown = {"file": line.file, "line": line.line, "embedding": vector}
                click.echo(json.dumps(shown))


def _vectors(
    client: Client, model: str, batch: Sequence[_Line], options: dict[str, Any]
) -> list[list[float]]:
    try:
        made = client.embed(model, [line.text for line in batch], **options)
    except SuperfluidError as error:
        if found := _PLACE.fullmatch(error.param or ""):
            line = batch[int(found[1])]
            error.add_note(f"{error.param} is line {line.line} of {line.file}")
        raise
    # As short as they can be and still be the same float32.
    return [[float(str(value)) for value in vector] for vector in made]


def _lines(files: Iterable[BinaryIO], *, whole: bool) -> Iterator[_Line]:
    for file in files:
        # Standard input may have no name.
        name = str(getattr(file, "name", "-"))
        name = "stdin" if name in ("-", "<stdin>") else name
        for number, data in enumerate((file.read(),) if whole else file, 1):
            try:
                text = data.decode()
            except UnicodeDecodeError:
                raise Invalid(
                    f"line {number} of {name} is no UTF-8 text; convert it first", param="input"
                ) from None
            text = text if whole else text.rstrip("\r\n")
            if text.strip():
                yield _Line(name, number, text)


def _batches(lines: Iterator[_Line]) -> Iterator[list[_Line]]:
    batch: list[_Line] = []
    size = 0
    for line in lines:
        if batch and (len(batch) >= _BATCH_TEXTS or size + len(line.text) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.text)
    if batch:
        yield batch
