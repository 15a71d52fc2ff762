"""What every command knows: the state folder, where the head is, how long to wait."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from bus.client import Client
from bus.client_address import api_address
from bus.state import StateFolder

_NAME = "sfctl"
#: Our commands in a sentence; not those that it says belong on another machine, and none that
#: has its program's path already.
_COMMAND = re.compile(
    r"(?<!on the head with: )(?<!on the head's machine: )"
    r"(?<![\w/.-])sfctl "
    r"((?:up|down|logs|status|node|model|run|chat|embed|attach|session|token|doctor|demo|backup|restore)\b)"
    r"(?![^`]*` on its machine)"
)


@dataclass(slots=True)
class CliContext:
    """The global options.

    Attributes:
        state_option: `--state`; None takes $SUPERFLUID_STATE or the default.
        api_option: `--api`; None takes $SUPERFLUID_API, or what the head wrote down.
        timeout_s: `--timeout`; None takes each command's own.
    """

    state_option: Path | None
    api_option: str | None
    timeout_s: float | None

    def state(self) -> StateFolder:
        """The state folder, made when missing."""
        return StateFolder.resolve(self.state_option)

    def look(self) -> StateFolder:
        """The state folder as it is; nothing is made."""
        return StateFolder.find(self.state_option)

    @property
    def names_address(self) -> bool:
        """Whether the head is named by its address, so it may be of another state folder."""
        return self._address() is not None

    def client(self) -> Client:
        """A connection to the head.

        Raises:
            NoHead: none answers.
        """
        address = self._address() or api_address(self.look())
        if self.timeout_s is None:
            return Client(address)
        return Client(address, timeout_s=self.timeout_s, operation_timeout_s=self.timeout_s)

    def command(self, rest: str) -> str:
        """A command to type next, with the options that it needs to reach the same head."""
        words = [_program()]
        if self.state_option is not None:
            words += ["--state", str(self.state_option)]
        return f"{shlex.join(words)} {rest}"

    def pasteable(self, text: str) -> str:
        """A text whose commands for this machine can be typed as they stand."""
        return _COMMAND.sub(lambda found: self.command(found[1]), text)

    def _address(self) -> str | None:
        if self.api_option is None and self.state_option is None:
            return os.environ.get("SUPERFLUID_API") or None
        return self.api_option


def _program() -> str:
    """How this program can be called: its name when the shell finds it, else as it was typed."""
    typed = sys.argv[0]
    found = shutil.which(_NAME)
    if Path(typed).name != _NAME or (found and Path(found).resolve() == Path(typed).resolve()):
        return _NAME
    return typed if os.sep in typed else os.path.join(os.curdir, typed)


pass_context = click.make_pass_decorator(CliContext)
