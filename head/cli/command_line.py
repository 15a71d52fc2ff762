"""The commands of `sfctl`: parse, call the client, print.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not healthy, 4 no head reachable, 5 not found,
6 not authorised, 7 busy, 8 timed out, 130 interrupted. Every failure prints one line to stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click

from bus.errors import NoHead, SuperfluidError
from bus.version import __version__
from head.cli import (
    attach,
    backup,
    chaos,
    chat,
    demo,
    doctor,
    embed,
    explain,
    keys,
    logs,
    models,
    nodes,
    services,
    sessions,
    transcribe,
)
from head.cli.context import CliContext, pass_context
from head.cli.interrupts import Ended
from head.cli.logs import EXIT_INTERRUPTED
from head.cli.machine import why_no_head
from head.cli.output import format_option, print_error, print_json

EXIT_USAGE = 2
#: "debug" shows tracebacks, too.
LEVEL_VARIABLE = "SUPERFLUID_LOG_LEVEL"


class ErrorGroup(click.Group):
    """A group that turns every error into one line and the exit code of its kind."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command line; always ends by SystemExit."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.UsageError as error:
            code = _wrong_usage(error)
        except click.ClickException as error:
            print_error(error.format_message())
            code = 1
        except SuperfluidError as error:
            print_error(error.message, getattr(error, "__notes__", ()))
            code = error.exit_code
        except Ended as ended:
            print_error(f"ended by {signal.Signals(ended.number).name}")
            code = 128 + ended.number
        except (click.Abort, KeyboardInterrupt):
            print_error("interrupted")
            code = EXIT_INTERRUPTED
        except OSError as error:
            code = _system_said_no(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, a person gets one line
            code = _fault_of_ours(error)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; its errors name commands as they can be typed here."""
        try:
            return super().invoke(ctx)
        except SuperfluidError as error:
            if isinstance(ctx.obj, CliContext):
                if isinstance(error, NoHead) and not ctx.obj.names_address:
                    error.message = why_no_head(ctx.obj.look(), error.message)
                error.message = ctx.obj.pasteable(error.message)
                if hint := attach.kept_text_hint(ctx.obj, error):
                    error.add_note(hint)
            raise


def _wrong_usage(error: click.UsageError) -> int:
    # Its name is there from click 8.2 on; before that the help of a bare group is no error.
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
    else:
        path = error.ctx.command_path if error.ctx else "sfctl"
        print_error(f"{_said_plainly(error)} See: {path} --help")
    return EXIT_USAGE


def _said_plainly(error: click.UsageError) -> str:
    """Its text, with the range of a number that is none in place of click's name of the type."""
    text = error.format_message()
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param else None
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return text
    number = "whole number" if isinstance(kind, click.IntRange) else "number"
    if kind.max is None:
        wanted = f"a {number}" if kind.min is None else f"a {number} of at least {kind.min}"
    else:
        wanted = f"a {number} from {kind.min} to {kind.max}"
    return text.replace(f"a valid {kind.name}", wanted)


def _system_said_no(error: OSError) -> int:
    """A file that can not be used, or output that nothing takes (a full disk)."""
    if _debugging():
        traceback.print_exc()
    if error.filename is not None:
        print_error(f"can not use {error.filename}: {error.strerror}; check that path and its mode")
        return 1
    print_error(f"can not write the output: {error.strerror or error}; send it elsewhere")
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        # What is left in the buffer would be tried again at exit, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _fault_of_ours(error: Exception) -> int:
    if _debugging():
        traceback.print_exc()
    print_error(
        f"unexpected {type(error).__name__}: {error}; this is a fault of superfluid: please report "
        f"it with what {LEVEL_VARIABLE}=debug shows in front of this command"
    )
    return 1


def _debugging() -> bool:
    return os.environ.get(LEVEL_VARIABLE, "").lower() == "debug"


@click.group(cls=ErrorGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="State folder [default: $SUPERFLUID_STATE, else ~/.local/state/superfluid].",
)
@click.option("--api", help="The head's API address [default: what the head wrote down].")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    show_default="600 for an answer, 180 for up, 70 for down, 30 for others",
    help="Seconds that a wait may take.",
)
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
    logs.logs,
    nodes.status,
    nodes.node,
    models.model,
    chat.run,
    chat.chat,
    embed.embed,
    transcribe.transcribe,
    attach.attach,
    sessions.session,
    explain.explain,
    keys.token,
    doctor.doctor,
    demo.demo,
    backup.backup,
    backup.restore_command,
    chaos.chaos,
):
    cli.add_command(_command)
