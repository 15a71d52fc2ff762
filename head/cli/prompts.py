"""Text that a person gives: arguments, stdin, and lines at a prompt."""

from __future__ import annotations

import os
import stat
import sys

import click

from bus.errors import Invalid, TooLarge
from bus.messages.api import MAX_BODY_BYTES
from head.cli.output import note

_PROMPT = "> "


def text_argument(value: str) -> str:
    """The type of an argument that is text; what the shell passed on as other bytes is refused."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("it is no UTF-8 text; convert it first") from None
    return value


def whole_prompt(argument: str | None) -> str:
    """The prompt of a command line, and what is piped in after it.

    Args:
        argument: None or "-" takes stdin alone.

    Raises:
        Invalid: it is empty, or stdin holds no UTF-8 text.
        TooLarge: stdin holds more than the head takes.
    """
    if argument is None or argument == "-":
        if sys.stdin.isatty():
            note("type the prompt; Ctrl-D at the beginning of a line ends it")
        prompt = _read_stdin()
    elif _is_piped():
        prompt = "\n\n".join(filter(str.strip, (argument, _read_stdin())))
    else:
        prompt = argument
    if not prompt.strip():
        raise Invalid("the prompt is empty; give it as an argument or on stdin", param="prompt")
    return prompt


def _is_piped() -> bool:
    """Whether stdin is a file or pipe: text that somebody gave, not just no terminal."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_stdin() -> str:
    data = sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
    if len(data) > MAX_BODY_BYTES:
        raise TooLarge(f"stdin has more than the {MAX_BODY_BYTES} bytes that a head takes")
    return _decode(data)


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Invalid(
            f"stdin holds no UTF-8 text (byte {error.start + 1}); convert it first", param="prompt"
        ) from None


class Lines:
    """The lines of a conversation: typed at a prompt, or piped in."""

    def __init__(self) -> None:
        self._typed = sys.stdin.isatty()
        if self._typed:
            note("Ctrl-D or /exit ends the chat, Ctrl-C an answer")
            try:
                import readline  # noqa: F401 - gives input() line editing and history
            except ImportError:
                pass

    def next(self) -> str | None:
        """The next line, None at the end.

        Raises:
            KeyboardInterrupt: Ctrl-C on an empty line; a half-typed one is only dropped.
        """
        if not self._typed:
            data = sys.stdin.buffer.readline()
            return _decode(data).rstrip("\n") if data else None
        interrupted = False
        while True:
            try:
                return input(_PROMPT)
            except EOFError:
                click.echo()
                return None
            except KeyboardInterrupt:
                click.echo()
                if interrupted:
                    raise
                interrupted = True
                note("once more ends the chat")
