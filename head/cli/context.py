"""What every command knows: the state folder, where the head is, how long to wait."""

from __future__ import annotations

import os
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
        """The state folder."""
        return StateFolder.resolve(self.state_option)

    def client(self) -> Client:
        """A connection to the head.

        Raises:
            NoHead: none answers.
        """
        api = self.api_option
        if api is None and self.state_option is None:
            api = os.environ.get("SUPERFLUID_API")
        address = api or api_address(self.state())
        if self.timeout_s is None:
            return Client(address)
        return Client(address, timeout_s=self.timeout_s, operation_timeout_s=self.timeout_s)

    def command(self, rest: str) -> str:
        """A command to type next, with the options that it needs to reach the same head."""
        words = [_program()]
        if self.state_option is not None:
            words += ["--state", str(self.state_option)]
        return f"{shlex.join(words)} {rest}"


def _program() -> str:
    """How this program can be called: its name when the shell finds it, else its path."""
    called = Path(sys.argv[0])
    found = shutil.which(_NAME)
    if called.name != _NAME or (found and Path(found).resolve() == called.resolve()):
        return _NAME
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)


pass_context = click.make_pass_decorator(CliContext)
