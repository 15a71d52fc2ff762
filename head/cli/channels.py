"""Answers on a terminal: reasoning apart from the text, and the calls of tools."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bus.call import Token
from bus.messages.text import MAX_TOOLS_BYTES
from bus.messages.tool_calls import ToolCall

F = TypeVar("F", bound=Callable[..., Any])


class ChannelPrinter:
    """Prints the tokens of one answer as they come. Data is on stdout: text, and calls.

    Reasoning is for people: it is printed on a terminal only, dim.
    """

    def __init__(self) -> None:
        self._shows_reasoning = sys.stdout.isatty()
        self._dim = self._shows_reasoning and not os.environ.get("NO_COLOR")
        #: The last thing printed was reasoning.
        self._reasons = False
        self._last = ""

    def print(self, event: Token) -> None:
        """Print what an event completes."""
        if event.reasoning and self._shows_reasoning:
            if not self._reasons and not self._dim:
                self._write("thinking: ")
            self._reasons = True
            self._write(event.reasoning, dim=self._dim)
        if event.text:
            self._end_reasoning()
            self._write(event.text)
        for call in event.tool_calls:
            self._end_reasoning()
            self.end_line()
            self._write(f"{call_line(call)}\n")
        sys.stdout.flush()

    def end_line(self) -> None:
        """Go to the beginning of a line."""
        if self._last and not self._last.endswith("\n"):
            self._write("\n")

    def _end_reasoning(self) -> None:
        if self._reasons:
            self._reasons = False
            self.end_line()
            self._write("\n")

    def _write(self, text: str, *, dim: bool = False) -> None:
        click.echo(click.style(text, dim=True) if dim else text, nl=False)
        self._last = text or self._last


def call_line(call: ToolCall) -> str:
    """A call as people read it, in one line."""
    try:
        arguments = json.dumps(json.loads(call.arguments), ensure_ascii=False)
    except ValueError:
        arguments = call.arguments
    shown = "".join(c if c.isprintable() else " " for c in arguments)
    return f"-> {call.name}({'' if shown == '{}' else shown})"


def tools_option(command: F) -> F:
    """The `--tools` option; the command gets a list of maps, or None."""
    made = click.option(
        "--tools",
        type=_tools,
        metavar="FILE",
        help="Tools that the model may call: a JSON list of functions with name, description and "
        "parameters. You are asked for their results.",
    )
    return made(command)


def _tools(given: str) -> list[Any]:
    """The tools in a file; what each may be is the head's to judge."""
    if Path(given).is_dir():
        raise click.BadParameter(f"{given!r} is a folder; name a file in it.")
    try:
        with Path(given).open("rb") as file:
            data = file.read(MAX_TOOLS_BYTES + 1)
        found = json.loads(data.decode()) if len(data) <= MAX_TOOLS_BYTES else None
    except OSError as error:
        raise click.BadParameter(f"{given!r} can not be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{given!r} holds no JSON: {error}.") from None
    if found is None and len(data) > MAX_TOOLS_BYTES:
        raise click.BadParameter(f"{given!r} has more than {MAX_TOOLS_BYTES} bytes.")
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        raise click.BadParameter(
            f'{given!r} should hold a JSON list of functions, such as [{{"name": "now"}}].'
        )
    return found
