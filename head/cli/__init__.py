"""`sfctl`, the command line."""

from __future__ import annotations

from typing import NoReturn

from head.cli.interrupts import end_at_once, take_signals


def main() -> NoReturn:
    """The console script."""
    # The commands take a while to import on a busy machine, and nothing is begun before they are.
    end_at_once()
    from head.cli.command_line import cli

    take_signals()
    cli.main(prog_name="sfctl")
