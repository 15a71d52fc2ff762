"""`status` and `node`: what the head knows of itself and its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from head.cli.context import CliContext, pass_context
from head.cli.output import format_option, note, print_json, print_rows

EXIT_NOT_HEALTHY = 3
_NODE_COLUMNS = ("identity", "state", "models", "generations", "lanes", "tokens/s", "problem")
_MODEL_COLUMNS = ("name", "ready", "nodes", "window_tokens", "lanes_total", "queued")


def problems(status: Mapping[str, Any]) -> list[str]:
    """What keeps the fleet from being healthy, one sentence each."""
    found = []
    nodes, models = status.get("nodes", []), status.get("models", [])
    if not nodes:
        found.append("no node has joined; start one with: sfctl up --agent-only")
    found += [
        f"node {node['identity']} is down: {node.get('reason') or 'no reason known'}"
        for node in nodes
        if node.get("state") == "down"
    ]
    found += [
        f"node {node['identity']} can not serve {model['name']}: {model['problem']}"
        for node in nodes
        for model in node.get("models", [])
        if model.get("problem")
    ]
    if not models:
        found.append("there is no model; get one with: sfctl model import smollm2")
    found += [
        f"model {model['name']} is not ready on any node" for model in models if not model["ready"]
    ]
    return found


def _row(node: Mapping[str, Any]) -> dict[str, Any]:
    models = node.get("models", [])
    used = sum(model.get("lanes_used", 0) for model in models)
    total = sum(model.get("lanes_total", 0) for model in models)
    wrong = [m["problem"] for m in models if m.get("problem")]
    return {
        **node,
        "models": [f"{model['name']} ({model['phase']})" for model in models],
        "lanes": f"{used}/{total}",
        "tokens/s": max((model.get("decode_rate", 0.0) for model in models), default=0.0),
        "problem": node.get("reason") or "; ".join(wrong),
    }


def _print_nodes(nodes: list[dict[str, Any]], form: str) -> None:
    if form == "json":
        print_json(nodes)
    else:
        print_rows([_row(node) for node in nodes], _NODE_COLUMNS, form)


@click.command()
@format_option
@click.pass_context
def status(click_context: click.Context, form: str) -> None:
    """Show head, nodes and models; exits 3 when something is not healthy."""
    context = click_context.ensure_object(CliContext)
    with context.client() as client:
        report = client.status()
    wrong = problems(report)
    if form == "json":
        print_json({**report, "problems": wrong})
    else:
        _print_status(report)
        for problem in wrong:
            note(f"problem: {problem}")
    if wrong:
        click_context.exit(EXIT_NOT_HEALTHY)


def _print_status(report: Mapping[str, Any]) -> None:
    head, answers = report.get("head", {}), report.get("answers", {})
    click.echo(
        f"head {head.get('id')}  version {head.get('version')}  up {head.get('uptime_s', 0):.0f} s"
        f"  placement {head.get('placement')}"
    )
    click.echo(f"answers: {answers.get('running', 0)} running, {answers.get('queued', 0)} queued")
    click.echo()
    print_rows([_row(node) for node in report.get("nodes", [])], _NODE_COLUMNS, "table")
    click.echo()
    print_rows(report.get("models", []), _MODEL_COLUMNS, "table")


@click.group()
def node() -> None:
    """Look at the fleet's nodes."""


@node.command("ls")
@format_option
@pass_context
def node_ls(context: CliContext, form: str) -> None:
    """List the nodes."""
    with context.client() as client:
        _print_nodes(client.nodes(), form)
