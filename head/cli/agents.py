"""The node agents of this machine: what they would be started with, and how they are.

Their configuration is the agent's own to read, so a program of its side is asked (agent.check). A
running one keeps a status file in its folder, which is also there where no head can be asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.agent_status import PERMANENT_REFUSALS, AgentModel, AgentStatus, read_agent_status
from bus.errors import ERROR_TABLE, ConfigInvalid, Internal, StartError, SuperfluidError
from bus.state import StateFolder
from head.cli.program import run_program
from head.cli.supervision import ServiceProcess

NODE_GROUP = "node"
#: A worker may end this often without saying why before it counts as a fault.
_TRIES = 2


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """What one agent would be started with.

    Attributes:
        head: where it looks for its head; empty for the head of the same state folder.
        models: that it would serve.
        not_served: why others can not be.
        problems: what keeps it from starting: about what, and the error.
    """

    name: str
    identity: str = ""
    head: str = ""
    models: tuple[str, ...] = ()
    not_served: tuple[str, ...] = ()
    problems: tuple[tuple[str, SuperfluidError], ...] = ()


def agent_names(count: int) -> list[str]:
    """The names that supervisord gives (conf/supervisord.conf)."""
    return [f"node-{number}" for number in range(1, count + 1)]


def plan_agents(state: StateFolder, names: Sequence[str]) -> list[AgentPlan]:
    """Ask the agent's side what agents of these names would do."""
    if not names:
        return []
    _, rows = run_program("agent.check", ["--state", str(state.path), "--", *names])
    return [_plan(row) for row in rows]


def _plan(row: Mapping[str, Any]) -> AgentPlan:
    return AgentPlan(
        name=row["name"],
        identity=row.get("identity", ""),
        head=row.get("head", ""),
        models=tuple(row.get("models", ())),
        not_served=tuple(row.get("not_served", ())),
        problems=tuple(
            (each["about"], ERROR_TABLE.get(each["code"], Internal)(each["message"]))
            for each in row["problems"]
        ),
    )


def check_agents(plans: Iterable[AgentPlan]) -> None:
    """See that all can start.

    Raises:
        SuperfluidError: the first problem of one, or two have the same identity.
    """
    names: dict[str, str] = {}
    for plan in plans:
        for _, error in plan.problems:
            raise error
        other = names.setdefault(plan.identity, plan.name)
        if other != plan.name:
            raise ConfigInvalid(
                f"{other} and {plan.name} would both be {plan.identity}; set node.identity in "
                f"nodes/{plan.name}/agent.toml of the state folder, or in neither"
            )


def running_status(state: StateFolder, process: ServiceProcess) -> AgentStatus | None:
    """What an agent that runs tells of itself; None while it has told nothing yet."""
    found = read_agent_status(state.nodes / process.name)
    return found if found is not None and found.pid == process.pid else None


def local_names(state: StateFolder) -> dict[str, str]:
    """From identity in the fleet to local name, of all agents that ever ran here."""
    try:
        folders = sorted(state.nodes.iterdir())
    except OSError:
        return {}
    told = [(folder.name, read_agent_status(folder)) for folder in folders]
    return {status.identity: name for name, status in told if status is not None}


def lasting_fault(
    plan: AgentPlan, status: AgentStatus, own_head: str | None
) -> SuperfluidError | None:
    """What keeps an agent from serving its usable models and will not pass by waiting.

    Args:
        plan: the agent's.
        status: what it tells.
        own_head: where the head of its state folder takes joins now; None when it has another.
    """
    name = plan.name
    for model in served(plan, status):
        if model.phase != "ready" and (model.code or model.failures >= _TRIES):
            cls = ERROR_TABLE.get(model.code, StartError)
            return cls(f"{name} can not serve {model.name}: {model.problem}")
    link = status.link
    # Until its own head has said where it is, an agent may knock at that of another fleet.
    asked_ours = own_head is None or link.address == own_head
    if link.code in PERMANENT_REFUSALS and not link.up and asked_ours:
        return PERMANENT_REFUSALS[link.code](f"{name} can not join: {link.reason}")
    return None


def served(plan: AgentPlan, status: AgentStatus) -> list[AgentModel]:
    """The usable models that an agent has; one that was imported after its start is not there."""
    return [model for model in status.models if model.name in plan.models]


def not_ready(plan: AgentPlan, status: AgentStatus | None) -> str:
    """What an agent still waits for; empty when it is linked and serves its usable models."""
    if status is None:
        return f"{plan.name} is starting"
    if not status.link.up:
        return f"{plan.name}: {status.link.reason or f'not linked to {status.link.peer} yet'}"
    for model in served(plan, status):
        if model.phase != "ready":
            why = f" ({model.problem})" if model.problem else ""
            return f"{plan.name}: {model.name} is {model.phase}{why}"
    return ""
