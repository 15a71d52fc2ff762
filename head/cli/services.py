"""`up`, `down` and `logs`: the services of this machine."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bus.errors import NotFound, StartError, SuperfluidError
from bus.state import StateFolder
from head.cli import preflight
from head.cli.context import CliContext, pass_context
from head.cli.models import usable_models
from head.cli.output import note, one_line
from head.cli.processes import ProcessId, descendants, end, process, services_of, wait_ended
from head.cli.readiness import Readiness, explains_itself, wait_ready
from head.cli.supervision import Supervisor

UP_TIMEOUT_S = 180.0
DOWN_TIMEOUT_S = 70.0
#: What is left after an orderly stop is asked, and then killed, with this much patience.
_LEFTOVER_GRACE_S = 10.0
_FOLLOW_EVERY_S = 0.2


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Node agents to run here.",
)
@click.option("--head-only", is_flag=True, help="Run no node agent here.")
@click.option("--agent-only", is_flag=True, help="Run no head here.")
@pass_context
def up(context: CliContext, nodes: int, head_only: bool, agent_only: bool) -> None:
    """Start this machine's head and node agents and wait until they are ready."""
    if head_only and agent_only:
        raise click.UsageError("--head-only and --agent-only exclude each other.")
    start_services(context, heads=0 if agent_only else 1, nodes=0 if head_only else nodes)


@click.command()
@pass_context
def down(context: CliContext) -> None:
    """End this machine's services; fine when none runs."""
    note("stopped" if stop_services(context.state(), context.timeout_s) else "nothing was running")


@click.command()
@click.argument("name", default="head")
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is added.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True)
@pass_context
def logs(context: CliContext, name: str, follow: bool, lines: int) -> None:
    """Print the log of NAME: head, node-1, ..., or supervisord."""
    file = _log_file(context.state(), name)
    for line in read_log(file, lines, follow=follow):
        click.echo(line)


def start_services(context: CliContext, *, heads: int, nodes: int) -> bool:
    """Start and wait until ready; on any failure nothing is left running.

    Returns:
        False when they were running before.

    Raises:
        SuperfluidError: why not; the notes on stderr hold the services' own last words.
    """
    state = context.state()
    with _one_start(state):
        return _start_services(context, state, heads, nodes)


def _start_services(context: CliContext, state: StateFolder, heads: int, nodes: int) -> bool:
    supervisor = Supervisor(state)
    if supervisor.running():
        _check_same(supervisor, heads, nodes)
        note("already running")
        names = tuple(usable_models(state.models))
        ready = Readiness(state, heads=heads, nodes=nodes, models=names)
        wait_ready(ready, supervisor, context.timeout_s or UP_TIMEOUT_S)
        return False
    models = _check_before_start(context, state, heads, nodes)
    try:
        supervisor.start(heads=heads, nodes=nodes)
        ready = Readiness(state, heads=heads, nodes=nodes, models=tuple(models))
        wait_ready(ready, supervisor, context.timeout_s or UP_TIMEOUT_S)
    except BaseException as error:
        if isinstance(error, SuperfluidError):
            _show_last_words(state, supervisor)
        stop_services(state, None)
        raise
    note(f"ready; look with: {context.command('status')}  end with: {context.command('down')}")
    return True


@contextmanager
def _one_start(state: StateFolder) -> Iterator[None]:
    """One start at a time: the failure of a second would take the first one's services down."""
    lock = state.lock("sfctl-up")
    try:
        yield
    finally:
        lock.close()


def _check_before_start(
    context: CliContext, state: StateFolder, heads: int, nodes: int
) -> list[str]:
    """The checks of preflight; gives the models here."""
    left = services_of(state.path)
    if left:
        pids = ", ".join(str(each.pid) for each in left)
        raise StartError(
            f"processes of an earlier run are left (process ids {pids}); end them with: "
            f"{context.command('down')}"
        )
    preflight.check_paths(state)
    preflight.check_open_files()
    config = preflight.head_config(state, os.environ) if heads else None
    preflight.check_token(state, config, context.command("token new"))
    if config is not None:
        preflight.check_port(config.fleet.bind)
    return preflight.check_models(state, context.command("model import smollm2"))


def _check_same(supervisor: Supervisor, heads: int, nodes: int) -> None:
    groups = [process.group for process in supervisor.processes()]
    have = (groups.count("head"), groups.count("node"))
    if have != (heads, nodes):
        raise StartError(
            f"{have[0]} head and {have[1]} node agents run here already, not {heads} and {nodes}; "
            "first end them with: sfctl down"
        )


def _show_last_words(state: StateFolder, supervisor: Supervisor) -> None:
    """What services that did not come up said last."""
    try:
        processes = supervisor.processes()
    except StartError:
        return
    for each in processes:
        file = state.log / f"{each.name}.log"
        if each.state != "RUNNING" and file.exists() and not explains_itself(file):
            note(f"last lines of {file}:")
            for line in read_log(file, 5, follow=False):
                note(f"  {line}")


def stop_services(state: StateFolder, timeout_s: float | None) -> bool:
    """End all services: agents first, then the head, then supervisord.

    Args:
        timeout_s: for the orderly end; what is left then is killed.

    Returns:
        Whether anything was running.

    Raises:
        StartError: processes are left that can not be ended.
    """
    supervisor = Supervisor(state)
    mine: list[ProcessId] = services_of(state.path)
    if supervisor.running():
        try:
            _stop_in_order(supervisor, mine)
            wait_ended(mine, timeout_s or DOWN_TIMEOUT_S)
        except StartError as error:
            note(f"the orderly end failed: {error.message}")
    # Whatever started while the first list was made, too.
    left = [each for each in {*mine, *services_of(state.path)} if each.alive]
    if left:
        note(f"{len(left)} processes did not end in order; ending them")
        left = end(left, grace_s=_LEFTOVER_GRACE_S)
    if left:
        pids = ", ".join(str(each.pid) for each in left)
        raise StartError(f"processes {pids} can not be ended; end them as the user they belong to")
    return bool(mine)


def _stop_in_order(supervisor: Supervisor, mine: list[ProcessId]) -> None:
    """Stop the groups and supervisord; adds all processes that this should end to `mine`.

    Raises:
        StartError: supervisord does not do as it is told.
    """
    pid = supervisor.pid()
    itself = process(pid)
    mine += descendants(pid) + ([itself] if itself else [])
    groups = {each.group for each in supervisor.processes()}
    for group in ("node", "head"):
        if group in groups:
            supervisor.stop_group(group)
    supervisor.shutdown()


def read_log(file: Path, lines: int, *, follow: bool) -> Generator[str, None, None]:
    """The last lines of a log, and with `follow` those that are added, also after a rotation."""
    opened = file.open(errors="replace")
    try:
        yield from map(one_line, deque(opened, maxlen=lines))
        part = ""
        while follow:
            part += opened.readline()
            if part.endswith("\n"):
                yield one_line(part)
                part = ""
            elif file.exists() and file.stat().st_ino != os.fstat(opened.fileno()).st_ino:
                opened.close()
                opened = file.open(errors="replace")
            else:
                # A file gives no sign of growth that could be waited for everywhere.
                time.sleep(_FOLLOW_EVERY_S)
    finally:
        opened.close()


def _log_file(state: StateFolder, name: str) -> Path:
    have = sorted(file.stem for file in state.log.glob("*.log")) if state.log.is_dir() else []
    if name not in have:
        known = ", ".join(have) or "none; start with: sfctl up"
        raise NotFound(f"there is no log of {name}; there is: {known}")
    return state.log / f"{name}.log"
