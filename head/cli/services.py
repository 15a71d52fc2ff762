"""`up` and `down`: the services of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from bus.errors import ConfigInvalid, StartError, SuperfluidError, TimedOut
from bus.state import StateFolder
from head.cli import preflight
from head.cli.agents import NODE_GROUP, AgentPlan, agent_names, check_agents, plan_agents
from head.cli.context import CliContext, pass_context
from head.cli.last_up import MAX_NODES, last_nodes, note_nodes
from head.cli.machine import changed_since_start, unnamed_head
from head.cli.output import note
from head.cli.processes import (
    ProcessId,
    await_begun,
    descendants,
    end,
    process,
    services_of,
    wait_ended,
)
from head.cli.readiness import Readiness, wait_ready
from head.cli.supervision import Supervisor

DOWN_TIMEOUT_S = 70.0
#: What is left after an orderly stop is asked, and then killed, with this much patience.
_LEFTOVER_GRACE_S = 10.0
_START_LOCK = "sfctl-up"
#: How a worker's refusal of a device ends, for one that the configuration has.
_DEVICE_REMEDY = re.compile(r"or take another device: .*", re.DOTALL)


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(1, MAX_NODES),
    help="Node agents to run here [default: as many as at the last start; 1 at the first].",
)
@click.option("--head-only", is_flag=True, help="Run no node agent here.")
@click.option("--agent-only", is_flag=True, help="Run no head here.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    help="Where workers compute, for this start; agent.toml has it for every one.",
)
@pass_context
def up(
    context: CliContext,
    nodes: int | None,
    head_only: bool,
    agent_only: bool,
    device: str | None,
) -> None:
    """Start this machine's head and node agents and wait until they are ready.

    When they run already, see that they are well.
    """
    if head_only and (agent_only or nodes or device):
        other = "--agent-only" if agent_only else "--nodes" if nodes else "--device"
        raise click.UsageError(f"--head-only and {other} exclude each other.")
    as_they_run = nodes is None
    if nodes is None:
        nodes = 0 if head_only else last_nodes(context.look())
    asked = Services(heads=0 if agent_only else 1, nodes=nodes)
    start_services(context, asked, as_they_run=as_they_run, device=device)


@click.command()
@pass_context
def down(context: CliContext) -> None:
    """End this machine's services; fine when none runs."""
    state = context.look()
    stopped = stop_services(state, context.timeout_s)
    _remove_stand_in(state)
    note("stopped" if stopped else "nothing was running")


@dataclass(frozen=True, slots=True)
class Services:
    """How many heads and node agents of one machine."""

    heads: int
    nodes: int

    def __str__(self) -> str:
        heads = "1 head" if self.heads else "no head"
        return f"{heads} and {self.nodes} node agent{'s' * (self.nodes != 1)}"

    @property
    def options(self) -> str:
        """What `up` needs to start these."""
        if not self.nodes:
            return "up --head-only"
        return f"up{'' if self.heads else ' --agent-only'} --nodes {self.nodes}"


def start_services(
    context: CliContext, asked: Services, *, as_they_run: bool = False, device: str | None = None
) -> bool:
    """Start and wait until ready.

    On any failure of a start nothing is left running, but agents that can not reach a head, which
    is elsewhere, are: they look for it for ever.

    Args:
        as_they_run: when agents are asked for and some run already, their number is fine as it is.
        device: of all workers; None leaves it to the agents' configuration.

    Returns:
        False when they were running before.

    Raises:
        SuperfluidError: why not.
    """
    state = context.state()
    with _one_start(state):
        supervisor = Supervisor(state)
        if supervisor.running():
            _see_running(context, state, supervisor, asked, as_they_run, device)
            return False
        with _device_option(context, asked, device):
            _start(context, state, supervisor, asked)
    return True


def _see_running(
    context: CliContext,
    state: StateFolder,
    supervisor: Supervisor,
    asked: Services,
    as_they_run: bool,
    device: str | None,
) -> None:
    """See that what runs is what was asked for, and well."""
    processes = supervisor.processes()
    names = [each.name for each in processes if each.group == NODE_GROUP]
    have = Services(heads=len(processes) - len(names), nodes=len(names))
    if as_they_run and asked.nodes and have.nodes:
        asked = Services(heads=asked.heads, nodes=have.nodes)
    if have != asked or device is not None:
        on = f" --device {device}" if device else ""
        raise StartError(
            f"{have} run here already and {asked}{on and f' with{on}'} were asked for; get there "
            f"with: {context.command('down')} && {context.command(asked.options + on)}"
        )
    plans = tuple(plan_agents(state, names))
    if changed := changed_since_start(state, processes):
        note(context.pasteable(changed))
    ready = Readiness(state, heads=have.heads, agents=plans)
    _say_without_head(context, wait_ready(ready, supervisor, context.timeout_s))
    note(f"already running: {have}; look with: {context.command('status')}")


def _start(
    context: CliContext, state: StateFolder, supervisor: Supervisor, asked: Services
) -> None:
    plans = _check_before_start(context, state, asked)
    try:
        supervisor.start(heads=asked.heads, nodes=asked.nodes)
        ready = Readiness(state, heads=asked.heads, agents=tuple(plans))
        without_head = wait_ready(ready, supervisor, context.timeout_s)
        note_nodes(state, asked.nodes)
    except TimedOut as error:
        stop_services(state, None)
        # Exit code 8 is left to agents that run on without their head.
        raise StartError(f"{error.message}; what had started was ended again") from None
    except BaseException:
        stop_services(state, None)
        raise
    _say_without_head(context, without_head)
    note(f"ready; look with: {context.command('status')}  end with: {context.command('down')}")


def _say_without_head(context: CliContext, why: str) -> None:
    """Tell that agents run without their head.

    Raises:
        TimedOut: they do.
    """
    if why:
        raise TimedOut(
            f"{why}; the agents run and keep trying: look with: {context.command('status')}  "
            f"end with: {context.command('down')}"
        )


@contextmanager
def _device_option(context: CliContext, asked: Services, device: str | None) -> Iterator[None]:
    """Hand the option to the services; it wins over agent.toml, so only it is the remedy."""
    if device is None:
        yield
        return
    os.environ["SUPERFLUID_WORKER_DEVICE"] = device
    try:
        yield
    except SuperfluidError as error:
        again = context.command(f"{asked.options} --device cpu")
        error.message = _DEVICE_REMEDY.sub(f"or start with: {again}", error.message)
        raise


@contextmanager
def _one_start(state: StateFolder) -> Iterator[None]:
    """One start at a time: the failure of a second would take the first one's services down."""
    lock = state.lock(_START_LOCK)
    try:
        yield
    finally:
        lock.close()


def _check_before_start(
    context: CliContext, state: StateFolder, asked: Services
) -> list[AgentPlan]:
    """The checks of preflight; gives what the agents will do."""
    left = services_of(state.path)
    if left:
        pids = ", ".join(str(each.pid) for each in left)
        raise StartError(
            f"processes of an earlier run are left (process ids {pids}); end them with: "
            f"{context.command('down')}"
        )
    preflight.check_paths(state)
    preflight.check_open_files()
    config = preflight.head_config(state, os.environ) if asked.heads else None
    if config is not None:
        preflight.check_token(state, config, context.command("token new"))
        preflight.check_port(config.fleet.bind)
    plans = plan_agents(state, agent_names(asked.nodes))
    if config is None and (why := unnamed_head(state, plans)):
        raise ConfigInvalid(why)
    check_agents(plans)
    not_served = [reason for plan in plans for reason in plan.not_served]
    if config is not None:
        preflight.check_joinable(config, plans)
        if plans:
            # A head alone needs none: it has tokenizers from its nodes.
            _, more = preflight.check_models(state, context.command("model import smollm2"))
            not_served += more
    for reason in dict.fromkeys(not_served):
        note(f"not served: {reason}")
    return plans


def _remove_stand_in(state: StateFolder) -> None:
    """Take a run folder in /tmp away, unless a start is under way."""
    try:
        lock = state.lock(_START_LOCK)
    except (StartError, OSError):
        return
    try:
        state.remove_stand_in()
    finally:
        lock.close()


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
    await_begun(pid, _LEFTOVER_GRACE_S)
    itself = process(pid)
    mine += descendants(pid) + ([itself] if itself else [])
    groups = {each.group for each in supervisor.processes()}
    for group in ("node", "head"):
        if group in groups:
            supervisor.stop_group(group)
    supervisor.shutdown()
