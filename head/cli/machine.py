"""What a machine is to its fleet: it has the head, agents that join one elsewhere, or neither."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from bus.agent_status import read_agent_status
from bus.errors import StartError, SuperfluidError
from bus.state import StateFolder
from head.cli.agents import NODE_GROUP, AgentPlan, agent_names, plan_agents
from head.cli.preflight import HEAD_TOML
from head.cli.supervision import ServiceProcess, Supervisor
from head.store_file import FILE as STORE_FILE

HEAD_GROUP = "head"
_AGENT_TOML = "agent.toml"
NAME_THE_HEAD = (
    "no head is named for {name} and none was ever started here; set join in [node] of agent.toml "
    'in {folder}, such as join = ["tcp://HEAD:8454"]'
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What is to be checked here.

    Attributes:
        runs_head: a head runs here, or would.
        settled: it is known what this machine is: a head is or was here, or agents name one.
        plans: of the agents that run here, or would.
        running: all services, None when none runs.
        failure: why the agents could not be asked what they would do.
    """

    runs_head: bool
    settled: bool
    plans: tuple[AgentPlan, ...]
    running: tuple[ServiceProcess, ...] | None
    failure: str = ""

    @property
    def agents(self) -> list[ServiceProcess]:
        """The agents that run."""
        return [each for each in self.running or () if each.group == NODE_GROUP and each.pid]

    def problem(self, about: str) -> str:
        """The first problem of an agent about configuration, token or models."""
        found = (error.message for p in self.plans for what, error in p.problems if what == about)
        return next(found, "")


def look_at_machine(state: StateFolder) -> Machine:
    """What runs here, or would run by what is configured."""
    supervisor = Supervisor(state)
    running = tuple(supervisor.processes()) if supervisor.running() else None
    names = [each.name for each in running or () if each.group == NODE_GROUP]
    try:
        plans = tuple(plan_agents(state, configured_names(state) if running is None else names))
        failure = ""
    except SuperfluidError as error:
        plans, failure = (), error.message
    was_here, join_elsewhere = head_was_here(state), any(plan.head for plan in plans)
    if running is not None:
        return Machine(len(names) < len(running), True, plans, running, failure)
    return Machine(was_here or not join_elsewhere, was_here or join_elsewhere, plans, None, failure)


def configured_names(state: StateFolder) -> list[str]:
    """Names of agents that `up` would start, and of those with a configuration of their own."""
    own = (file.parent.name for file in state.nodes.glob(f"*/{_AGENT_TOML}"))
    return sorted({*agent_names(1), *own})


def agents_configured(state: StateFolder) -> bool:
    """Whether anybody has configured agents here, which is cheaper to see than what for."""
    files = [state.path / _AGENT_TOML, *state.nodes.glob(f"*/{_AGENT_TOML}")]
    return any(file.exists() for file in files) or any(
        name.startswith("SUPERFLUID_NODE_") for name in os.environ
    )


def head_was_here(state: StateFolder) -> bool:
    """Whether a head was configured or ever started here.

    Its key does not say so: `token new` makes one, also where somebody tried it by mistake.
    """
    return (state.path / HEAD_TOML).exists() or (state.store / STORE_FILE).exists()


def head_elsewhere(state: StateFolder) -> str:
    """Where agents that ran here look for their head; empty on a machine that has, or had, one."""
    if head_was_here(state):
        return ""
    told = (read_agent_status(folder) for folder in sorted(state.nodes.glob("*")))
    return next((status.link.address for status in told if status is not None), "")


def unnamed_head(state: StateFolder, plans: Iterable[AgentPlan]) -> str:
    """Why an agent that is to run alone here would never find a head; empty when it may."""
    if head_was_here(state) or _has_head_file(state):
        return ""
    lost = (
        plan.name
        for plan in plans
        if not plan.head and not any(about == "configuration" for about, _ in plan.problems)
    )
    name = next(lost, "")
    return name and NAME_THE_HEAD.format(name=name, folder=state.path)


def why_no_head(state: StateFolder, error: str) -> str:
    """Why the head of a state folder does not answer, as far as this machine can tell.

    Args:
        error: what a client found.
    """
    supervisor = Supervisor(state)
    running = supervisor.processes() if supervisor.running() else []
    head = next((each for each in running if each.group == HEAD_GROUP), None)
    if head is not None and head.state == "FATAL":
        return "the head does not stay up; see why with: sfctl logs head"
    if head is not None:
        how = "does not answer yet" if head.state == "RUNNING" else f"is {head.state.lower()}"
        return (
            f"the head {how}; supervisord keeps it up, so try again in a moment, or see why with: "
            "sfctl logs head"
        )
    if address := head_elsewhere(state):
        how = "see how the agents here are" if running else "no agent runs here either; start them"
        return (
            f"no head runs on this machine, whose agents look for theirs at {address}; run, chat, "
            "node and the like work on the head's machine; "
            f"{how}: sfctl {'status' if running else 'up --agent-only'}"
        )
    return error


def changed_since_start(state: StateFolder, running: Iterable[ServiceProcess]) -> str:
    """A configuration file that is newer than the service that read it, with what applies it."""
    for each in running:
        own = state.nodes / each.name / _AGENT_TOML
        shared = state.path / (HEAD_TOML if each.group == HEAD_GROUP else _AGENT_TOML)
        file = own if each.group == NODE_GROUP and own.exists() else shared
        # When supervisord started it, in whole seconds.
        if each.pid and file.exists() and file.stat().st_mtime >= each.started + 1:
            return f"{file} changed since the start; apply it with: sfctl down && sfctl up"
    return ""


def _has_head_file(state: StateFolder) -> bool:
    try:
        return state.read_head() is not None
    except StartError:
        return False
