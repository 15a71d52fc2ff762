"""How the console script of a service ends: one line that says what to do, and the right status."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from bus.errors import SuperfluidError

EXIT_INTERRUPTED = 130


def run_service(command: click.Command, name: str, arguments: Sequence[str] | None) -> None:
    """Run a service's command and leave with the status that its error has.

    Args:
        command: the click command.
        name: of the console script, in front of the line.
        arguments: the command line's; None for the process's own.
    """
    try:
        command.main(args=arguments, prog_name=name, standalone_mode=False)
    except SuperfluidError as error:
        click.echo(f"{name}: {error.message}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(EXIT_INTERRUPTED)
