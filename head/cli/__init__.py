"""`sfctl`: parse, call the client, print.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not healthy, 4 no head reachable, 5 not found,
6 not authorised, 7 busy, 8 timed out, 130 interrupted. Every failure prints one line to stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from bus.errors import SuperfluidError
from bus.version import __version__
from head.cli import chat, demo, doctor, keys, models, nodes, services
from head.cli.context import CliContext, pass_context
from head.cli.output import format_option, print_error, print_json

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class ErrorGroup(click.Group):
    """A group that turns every error into one line and the exit code of its kind."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command line; always ends by SystemExit."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else "sfctl"
            print_error(f"{error.format_message()} See: {path} --help")
            code = EXIT_USAGE
        except click.ClickException as error:
            print_error(error.format_message())
            code = 1
        except SuperfluidError as error:
            print_error(error.message)
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            print_error("interrupted")
            code = EXIT_INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


@click.group(cls=ErrorGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="State folder [default: $SUPERFLUID_STATE, else ~/.local/state/superfluid].",
)
@click.option("--api", help="The head's API address [default: what the head wrote down].")
@click.option("--timeout", type=click.FloatRange(min=0.1), help="Seconds that a wait may take.")
@click.pass_context
def cli(context: click.Context, state: Path | None, api: str | None, timeout: float | None) -> None:
    """Run and use a superfluid fleet."""
    context.obj = CliContext(state, api, timeout)


@cli.command()
@format_option
@pass_context
def version(context: CliContext, form: str) -> None:
    """Show this program's version."""
    if form == "json":
        print_json({"version": __version__})
    else:
        click.echo(f"superfluid {__version__}")


for _command in (
    services.up,
    services.down,
    services.logs,
    nodes.status,
    nodes.node,
    models.model,
    chat.run,
    chat.chat,
    keys.token,
    doctor.doctor,
    demo.demo,
):
    cli.add_command(_command)


def main() -> NoReturn:
    """The console script."""
    cli.main(prog_name="sfctl")
