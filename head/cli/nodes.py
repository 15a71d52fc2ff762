"""`status` and `node`: what the head knows of itself and its nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from shlex import quote
from typing import Any

import click

from bus.agent_status import AgentStatus
from bus.state import StateFolder
from head.cli.agents import NODE_GROUP, local_names, running_status
from head.cli.context import CliContext, pass_context
from head.cli.node_drain import node_drain, node_label, node_undrain, shown_labels
from head.cli.node_keys import node_approve, node_enrolment, node_forget, node_revoke
from head.cli.output import format_option, note, print_json, print_rows
from head.cli.store import store_line, store_problems
from head.cli.supervision import ServiceProcess, Supervisor

EXIT_NOT_HEALTHY = 3
_NODE_COLUMNS = ("identity", "state", "models", "generations", "lanes", "tokens/s", "problem")
MODEL_COLUMNS = ("name", "ready", "nodes", "window_tokens", "lanes_total", "queued")
_AGENT_COLUMNS = ("name", "identity", "head", "linked", "models", "problem")
#: The local name of a node, which its log and folder have.
_LOCAL_COLUMN = "here"

_KEY_REASONS = {
    "pending": "waits for approval; host {host}, key {key}",
    "enrolled": "has not linked since the head was started",
    "revoked": "key {key} is revoked",
}

#: States of nodes whose figures are of now.
LIVE = frozenset({"up", "draining", "drained"})
#: How soon an approved node comes by itself, with something to spare.
_LINKS_WITHIN_S = 15.0
#: Nodes are back so soon after a start of the head, also those that wait between two attempts.
_BACK_WITHIN_S = 60.0
_JUST_APPROVED = "approved; it links by itself within 10 s"

Command = Callable[[str], str]


def problems(status: Mapping[str, Any], command: Command = "sfctl {}".format) -> list[str]:
    """What keeps the fleet from being healthy, one sentence each.

    Args:
        command: makes a command of ours that can be typed as it is.
    """
    found = []
    nodes, models = status.get("nodes", []), status.get("models", [])
    if all(node.get("state") == "left" for node in nodes):
        found.append(
            "no node is here; to run one on the head's machine: "
            f"{command('down')} && {command('up')}; on another: sfctl up --agent-only"
        )
    if any(node.get("state") in LIVE for node in nodes) and not any(
        node.get("state") == "up" for node in nodes
    ):
        found.append(
            "every node that is here is drained, so that no request is served; to give one work "
            f"again: {command('node undrain')} NAME"
        )
    found += store_problems(status, command)
    found += [
        f"node {node['identity']} is down: {node.get('reason') or 'no reason known'}; it comes "
        "back once its agent runs and reaches the head, or if it is gone for good: "
        f"{command('node forget')} {quote(node['identity'])}"
        for node in nodes
        if node.get("state") == "down"
    ]
    found += _not_back(status, command)
    found += [
        f"the node at {dialed['address']}, of [fleet] nodes, is not linked: {dialed['reason']}"
        for dialed in status.get("dialed", [])
        if dialed["state"] != "up" and not dialed["node"]
    ]
    found += [
        f"node {key['identity']} ({key['host'] or 'host unknown'}, key {key['key']}) waits for "
        f"approval; if it is yours: {command('node approve')} {quote(key['identity'])}"
        for key in _keys(status)
        if key["state"] == "pending"
    ]
    found += [
        f"node {node['identity']} can not serve {model['name']}: {model['problem']}"
        for node in nodes
        if node.get("state") in LIVE
        for model in node.get("models", [])
        if model.get("problem")
    ]
    found += [
        f"the head's own folder of {model['name']} has another tokenizer than its nodes and is not "
        f"used; remove it: {command('model rm')} {model['name']}, or import the nodes' file"
        for model in models
        if model.get("head_folder") and model.get("tokenizer") == "fetched"
    ]
    if not models:
        found.append(f"there is no model; get one with: {command('model import smollm2')}")
    found += [model_problem(model, command) for model in models if not model["ready"]]
    return found


def _not_back(status: Mapping[str, Any], command: Command) -> list[str]:
    """Nodes that were in the fleet before the head was started, and have not come since."""
    if status.get("head", {}).get("uptime_s", 0.0) < _BACK_WITHIN_S:
        return []
    here = {node["identity"] for node in status.get("nodes", [])}
    return [
        f"node {key['identity']} ({key['host'] or 'host unknown'}) has not linked since the head "
        "was started; see its agent's log for why, or if it is gone for good: "
        f"{command('node forget')} {quote(key['identity'])}"
        for key in _keys(status)
        if key["state"] == "enrolled" and key["identity"] not in here
    ]


def model_problem(model: Mapping[str, Any], command: Command) -> str:
    """Why a model that is not ready is not, and what helps."""
    name = model["name"]
    if model.get("nodes") and (problem := model.get("tokenizer_problem")):
        return f"model {name} is not ready on the head: {problem}"
    if model.get("nodes") and model.get("tokenizer") == "fetching":
        return f"model {name} is ready in a moment: the head fetches its tokenizer from a node"
    if model.get("nodes"):
        return f"model {name} is not ready on the head: its tokenizer does not load"
    if not model.get("on", [{}]):
        return (
            f"no node serves model {name}; have one that has it do so: "
            f"{command(f'model load {name}')} NODE"
        )
    return f"model {name} is not ready on any node"


def node_names(model: Mapping[str, Any]) -> frozenset[str]:
    """What a model on a node is called: by the fleet, and where it is a stage by the node itself.

    Args:
        model: as the head reports it of a node.
    """
    stage = model.get("stage") or {}
    return frozenset(filter(None, (model["name"], stage.get("folder"))))


def node_row(node: Mapping[str, Any], local: Mapping[str, str]) -> dict[str, Any]:
    """The cells of a node's line.

    Args:
        node: as the head reports it.
        local: from identity to local name, of nodes on this machine.
    """
    models = node.get("models", [])
    if node.get("state") not in LIVE:
        # What it told before it went says nothing of now.
        return {
            **node,
            _LOCAL_COLUMN: local.get(node["identity"]),
            "labels": shown_labels(node),
            "models": [model["name"] for model in models],
            "generations": None,
            "problem": "; ".join(filter(None, (node.get("reason"), _drained(node)))),
        }
    used = sum(model.get("lanes_used", 0) for model in models)
    total = sum(model.get("lanes_total", 0) for model in models)
    kinds = ("problem", "weights_problem")
    wrong = [model[kind] for model in models for kind in kinds if model.get(kind)]
    return {
        **node,
        _LOCAL_COLUMN: local.get(node["identity"]),
        "labels": shown_labels(node),
        "models": [f"{model['name']} ({model['phase']})" for model in models],
        "lanes": f"{used}/{total}",
        "tokens/s": max((model.get("decode_rate", 0.0) for model in models), default=0.0),
        "problem": node.get("reason") or "; ".join(wrong),
    }


def _drained(node: Mapping[str, Any]) -> str:
    """What is to be said of a node that gets no work though it is not here."""
    return "drained by an operator" if node.get("draining") else ""


def _keys(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Keys of nodes that the head knows, as `status` and `nodes` report them."""
    found: list[dict[str, Any]] = report.get("enrolment", {}).get("keys", [])
    return found


def with_keys(report: Mapping[str, Any], now_wall_s: float) -> list[dict[str, Any]]:
    """The nodes of a report, and those that never linked or may not any more.

    A revoked node is shown as that and not as one that left.

    Args:
        report: of `status` or `nodes`.
        now_wall_s: wall time, to tell who was approved just now.
    """
    nodes = {node["identity"]: dict(node) for node in report.get("nodes", [])}
    # Whoever answered at an address once is told of by its identity.
    others = [
        {"identity": dialed["address"], "state": dialed["state"], "reason": dialed["reason"]}
        for dialed in report.get("dialed", [])
        if dialed["node"] not in nodes
    ]
    for key in _keys(report):
        node = nodes.get(key["identity"])
        told = {**key, "host": key["host"] or "unknown"}
        fresh = (
            key["state"] == "enrolled"
            and now_wall_s - key.get("changed_wall_s", 0.0) < _LINKS_WITHIN_S
        )
        reason = _JUST_APPROVED if fresh else _KEY_REASONS[key["state"]].format(**told)
        shown = {**key, "reason": reason}
        if node is None or key["state"] == "pending":
            others.append(shown)
        elif key["state"] == "revoked" and node["state"] in ("left", "down"):
            node |= {"state": "revoked", "reason": shown["reason"]}
    return [*nodes.values(), *others]


def _print_nodes(nodes: list[dict[str, Any]], form: str, local: Mapping[str, str]) -> None:
    if form == "json":
        print_json(nodes)
        return
    rows = [node_row(node, local) for node in nodes]
    columns = list(_NODE_COLUMNS)
    if any(row[_LOCAL_COLUMN] for row in rows):
        columns.insert(1, _LOCAL_COLUMN)
    if any(row.get("labels") for row in rows):
        columns.insert(-1, "labels")
    print_rows(rows, columns, form)


def _local_names(context: CliContext) -> dict[str, str]:
    """Local names of nodes, where the head is of a state folder that may have some."""
    return {} if context.names_address else local_names(context.look())


@click.command()
@format_option
@click.pass_context
def status(click_context: click.Context, form: str) -> None:
    """Show head, nodes and models; exits 3 when something is not healthy.

    On a machine with agents only it shows those.
    """
    context = click_context.ensure_object(CliContext)
    agents = None if context.names_address else _agents_without_head(context.look())
    wrong = _show_fleet(context, form) if agents is None else _show_agents(agents, form)
    if wrong:
        click_context.exit(EXIT_NOT_HEALTHY)


def _show_fleet(context: CliContext, form: str) -> list[str]:
    with context.client() as client:
        report = client.status()
    wrong = problems(report, context.command)
    if form == "json":
        print_json({**report, "problems": wrong})
        return wrong
    head, answers = report.get("head", {}), report.get("answers", {})
    click.echo(
        f"head {head.get('id')}  version {head.get('version')}  up {head.get('uptime_s', 0):.0f} s"
        f"  placement {head.get('placement')}"
    )
    click.echo(f"answers: {answers.get('running', 0)} running, {answers.get('queued', 0)} queued")
    if line := store_line(report, time.time()):
        click.echo(line)
    click.echo()
    _print_nodes(with_keys(report, time.time()), form, _local_names(context))
    click.echo()
    print_rows(report.get("models", []), MODEL_COLUMNS, form)
    _tell(wrong)
    return wrong


def _agents_without_head(state: StateFolder) -> list[dict[str, Any]] | None:
    """One map per agent, when agents but no head run here; else None."""
    supervisor = Supervisor(state)
    if not supervisor.running():
        return None
    processes = supervisor.processes()
    if any(each.group != NODE_GROUP for each in processes):
        return None
    return [_agent(each, running_status(state, each)) for each in processes]


def _agent(process: ServiceProcess, status: AgentStatus | None) -> dict[str, Any]:
    if status is None:
        problem = f"it is {process.state.lower()}"
        return {"name": process.name, "linked": False, "models": [], "problem": problem}
    faults = [
        f"{m.name}: {m.problem or m.phase}"
        for m in status.models
        if m.phase not in ("ready", "unloading")
    ]
    if not status.link.up:
        faults.insert(0, status.link.reason or "not linked yet")
    return {
        "name": process.name,
        "identity": status.identity,
        "head": status.link.address,
        "linked": status.link.up,
        "models": [f"{model.name} ({model.phase})" for model in status.models],
        "problem": "; ".join(faults),
    }


def _show_agents(agents: list[dict[str, Any]], form: str) -> list[str]:
    wrong = [f"{each['name']}: {each['problem']}" for each in agents if each["problem"]]
    if form == "json":
        print_json({"head": None, "agents": agents, "problems": wrong})
        return wrong
    click.echo("no head runs on this machine; its agents:")
    print_rows(agents, _AGENT_COLUMNS, form)
    _tell(wrong)
    return wrong


def _tell(wrong: list[str]) -> None:
    for problem in wrong:
        note(f"problem: {problem}")


@click.group()
def node() -> None:
    """Look at the fleet's nodes, and say which may be in it."""


@node.command("ls")
@format_option
@pass_context
def node_ls(context: CliContext, form: str) -> None:
    """List the nodes, also those that wait for approval or were revoked."""
    with context.client() as client:
        report = client.operation("nodes")
    _print_nodes(with_keys(report, time.time()), form, _local_names(context))


for _command in (
    node_approve,
    node_revoke,
    node_forget,
    node_enrolment,
    node_drain,
    node_undrain,
    node_label,
):
    node.add_command(_command)
