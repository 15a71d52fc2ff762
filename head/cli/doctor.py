"""`doctor`: looks for what commonly goes wrong on a machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from bus.errors import SuperfluidError
from bus.packages import shadowed_packages
from bus.state import StateFolder
from head.cli import preflight
from head.cli.context import CliContext
from head.cli.nodes import EXIT_NOT_HEALTHY
from head.cli.output import format_option, print_rows
from head.cli.supervision import Supervisor, conf_file

_COLUMNS = ("check", "ok", "problem")


@click.command()
@format_option
@click.pass_context
def doctor(click_context: click.Context, form: str) -> None:
    """Check this machine; exits 3 when something is wrong."""
    rows = list(run_checks(click_context.ensure_object(CliContext)))
    print_rows(rows, _COLUMNS, form)
    if not all(row["ok"] for row in rows):
        click_context.exit(EXIT_NOT_HEALTHY)


def run_checks(context: CliContext) -> Iterator[dict[str, str | bool]]:
    """One row per check: its name, whether it is well, and what to do."""
    state = context.state()
    checks: dict[str, Callable[[], str]] = {
        "packages": shadowed_packages,
        "service files": lambda: _refusal(conf_file),
        "paths": lambda: _refusal(lambda: preflight.check_paths(state)),
        "open files": lambda: _refusal(preflight.check_open_files),
        "configuration": lambda: _refusal(lambda: preflight.head_config(state, os.environ)),
        "key files": lambda: open_key_files(state.keys),
        "token": lambda: _token(context, state),
        "models": lambda: _refusal(
            lambda: preflight.check_models(state, context.command("model import smollm2"))
        ),
        "services": lambda: _services(context, state),
    }
    for name, check in checks.items():
        problem = check()
        yield {"check": name, "ok": not problem, "problem": problem}


def open_key_files(keys: Path) -> str:
    """Key files that others may read; empty when there are none."""
    for file in sorted(keys.glob("*")) if keys.is_dir() else []:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            return f"others can use {file}; run: chmod 600 {file}"
    return ""


def _token(context: CliContext, state: StateFolder) -> str:
    hint = context.command("token new")

    def check() -> None:
        preflight.check_token(state, preflight.head_config(state, os.environ), hint)

    return _refusal(check)


def _services(context: CliContext, state: StateFolder) -> str:
    supervisor = Supervisor(state)
    if not supervisor.running():
        return f"nothing runs here; start with: {context.command('up')}"
    bad = [
        each.name for each in supervisor.processes() if each.state not in ("RUNNING", "STARTING")
    ]
    return f"{', '.join(bad)} not running; see: {context.command('logs')} {bad[0]}" if bad else ""


def _refusal(check: Callable[[], object]) -> str:
    """What a check raises, as its text."""
    try:
        check()
    except SuperfluidError as error:
        return error.message
    return ""
