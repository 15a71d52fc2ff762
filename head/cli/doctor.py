"""`doctor`: looks for what commonly goes wrong on a machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from bus.address import split_address
from bus.agent_status import AgentStatus, read_agent_status
from bus.errors import SuperfluidError
from bus.packages import shadowed_packages
from bus.state import StateFolder
from head.cli import preflight
from head.cli.agents import running_status
from head.cli.context import CliContext
from head.cli.machine import Machine, changed_since_start, look_at_machine, unnamed_head
from head.cli.nodes import EXIT_NOT_HEALTHY, problems
from head.cli.output import format_option, print_rows
from head.cli.supervision import conf_file
from head.store_file import FILE, look_at_store

_COLUMNS = ("check", "ok", "problem")


@click.command()
@format_option
@click.pass_context
def doctor(click_context: click.Context, form: str) -> None:
    """Check this machine; exits 3 when something is wrong."""
    rows = list(run_checks(click_context.ensure_object(CliContext)))
    print_rows(rows, _COLUMNS, form)
    if any(row["ok"] is False for row in rows):
        click_context.exit(EXIT_NOT_HEALTHY)


def run_checks(context: CliContext) -> Iterator[dict[str, str | bool | None]]:
    """One row per check: its name, whether it is well (None: nothing to see), what to do."""
    state = context.look()
    machine = look_at_machine(state)
    checks: dict[str, Callable[[], str | Finding]] = {
        "packages": shadowed_packages,
        "service files": lambda: _refusal(conf_file),
        "paths": lambda: _refusal(lambda: preflight.check_paths(state)),
        "open files": lambda: _refusal(preflight.check_open_files),
        "configuration": lambda: _configuration(state, machine),
        "key files": lambda: open_key_files(state.keys),
        "token": lambda: _token(context, state, machine),
        "models": lambda: _models(context, state, machine),
        "store": lambda: look_at_store(state.store / FILE),
        "services": lambda: _services(context, machine),
        "links": lambda: _links(state, machine),
        "workers": lambda: _workers(state, machine),
        "fleet": lambda: _fleet(context, machine),
    }
    for name, check in checks.items():
        said = check()
        found = said if isinstance(said, Finding) else Finding(not said, said)
        yield {"check": name, "ok": found.ok, "problem": context.pasteable(found.problem)}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        ok: None when there is nothing to look at.
        problem: what to do, or why there is nothing.
    """

    ok: bool | None
    problem: str


def _bad(problem: str) -> Finding:
    return Finding(False, problem)


def _configuration(state: StateFolder, machine: Machine) -> str:
    def check() -> None:
        config = preflight.head_config(state, os.environ)
        if config.fleet.bind:
            split_address(config.fleet.bind, preflight.BIND_SETTING)
        preflight.check_joinable(config, machine.plans)

    own = _refusal(check) if machine.runs_head else ""
    if machine.running is not None:
        own = own or changed_since_start(state, machine.running)
    if not machine.runs_head:
        own = own or unnamed_head(state, machine.plans)
    return own or machine.failure or machine.problem("configuration")


def open_key_files(keys: Path) -> str:
    """Key files that others may read; empty when there are none."""
    for file in sorted(keys.glob("*")) if keys.is_dir() else []:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            return f"others can use {file}; run: chmod 600 {file}"
    return ""


def _token(context: CliContext, state: StateFolder, machine: Machine) -> str:
    def check() -> None:
        config = preflight.head_config(state, os.environ)
        hint = context.command("token new")
        if not machine.settled:
            hint += "; or on a node's machine copy the head's token file there"
        preflight.check_token(state, config, hint)

    own = _refusal(check) if machine.runs_head else ""
    return own or machine.problem("token")


def _models(context: CliContext, state: StateFolder, machine: Machine) -> str:
    hint = context.command("model import smollm2")
    # A head alone needs none: it has tokenizers from its nodes.
    serves = machine.runs_head and machine.plans
    own = _refusal(lambda: preflight.check_models(state, hint)) if serves else ""
    return own or machine.problem("models")


def _services(context: CliContext, machine: Machine) -> str:
    if machine.running is None:
        alone = context.command("up --agent-only")
        if not machine.runs_head:
            return f"nothing runs here; start with: {alone}"
        as_node = "" if machine.settled else f"; or as a node: set join in agent.toml, then {alone}"
        return f"nothing runs here; start with: {context.command('up')}{as_node}"
    bad = [each.name for each in machine.running if each.state not in ("RUNNING", "STARTING")]
    return f"{', '.join(bad)} not running; see: {context.command('logs')} {bad[0]}" if bad else ""


def _links(state: StateFolder, machine: Machine) -> Finding:
    """The first agent without its head."""
    for each in machine.agents:
        status = running_status(state, each)
        if status is None:
            return _bad(f"{each.name} has not told how it is yet; look again in a moment")
        if not status.link.up:
            return _bad(f"{each.name}: {_why_no_link(status)}")
    return _not_running(state, machine, _why_no_link)


def _workers(state: StateFolder, machine: Machine) -> Finding:
    """The first model that an agent can not serve."""
    for each in machine.agents:
        status = running_status(state, each)
        if status is not None and (why := _why_not_served(status)):
            return _bad(f"{each.name}: {why}")
    return _not_running(state, machine, _why_not_served)


def _fleet(context: CliContext, machine: Machine) -> Finding:
    """The first problem that `status` shows, where the head runs."""
    if machine.running is None or not machine.runs_head or context.names_address:
        return Finding(None, "no head is to be asked here")
    try:
        with context.client() as client:
            wrong = problems(client.status(), context.command)
    except SuperfluidError as error:
        return _bad(error.message)
    return _bad(wrong[0]) if wrong else Finding(True, "")


def _not_running(
    state: StateFolder, machine: Machine, fault: Callable[[AgentStatus], str]
) -> Finding:
    """What agents that should run but do not told last; well when all run."""
    running = {each.name for each in machine.agents}
    missing = [plan.name for plan in machine.plans if plan.name not in running]
    for name in missing:
        status = read_agent_status(state.nodes / name)
        if status is not None and (why := fault(status)):
            return _bad(f"{name} does not run; last: {why}")
    if missing:
        return Finding(None, f"{missing[0]} does not run, so there is nothing to look at")
    return Finding(True, "") if running else Finding(None, "no agent is to run here")


def _why_no_link(status: AgentStatus) -> str:
    link = status.link
    return "" if link.up else link.reason or f"not linked to {link.peer} yet"


def _why_not_served(status: AgentStatus) -> str:
    for model in status.models:
        if model.phase not in ("ready", "unloading"):
            return f"{model.name} is {model.phase}" + (
                f": {model.problem}" if model.problem else ""
            )
    return ""


def _refusal(check: Callable[[], object]) -> str:
    """What a check raises, as its text."""
    try:
        check()
    except SuperfluidError as error:
        return error.message
    return ""
