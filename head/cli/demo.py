"""`demo`: from nothing to an answer of a real model, in one command."""

from __future__ import annotations

import os

import click

from bus.answer import Answer
from bus.errors import PortInUse
from bus.state import StateFolder
from head.cli.chat import print_stream
from head.cli.context import CliContext, pass_context
from head.cli.keys import make_token
from head.cli.model_store import import_model, pull_model, usable_models
from head.cli.output import note
from head.cli.preflight import check_port, head_config
from head.cli.services import Services, start_services, stop_services
from head.cli.supervision import Supervisor
from head.config import HeadConfig
from head.link_identity import token_file

_MODEL = "smollm2"
_QUESTION = "In two sentences: why is the sky blue?"
_NODES = 2
_MAX_NEW = 120


@click.command()
@click.option("--model", default=_MODEL, show_default=True, help="A model that can be pulled.")
@click.option("--prompt", default=_QUESTION, show_default=True, help="What to ask it.")
@pass_context
def demo(context: CliContext, model: str, prompt: str) -> None:
    """Get a model, start one head and two node agents, and ask it something."""
    state = context.state()
    if model not in usable_models(state.models):
        note(f"getting {model}")
        file = pull_model(model)
        note(f"importing {file.name}")
        import_model(file, model, state.models)
    file = token_file(head_config(state, os.environ).fleet, state)
    if not file.exists():
        make_token(state, file)
    _step_aside(state)
    note("starting one head and two node agents")
    started = start_services(context, Services(heads=1, nodes=_NODES), as_they_run=True)
    try:
        answer = _ask(context, model, prompt)
    except BaseException:
        if started:
            stop_services(state, context.timeout_s)
        raise
    click.echo("\n")
    click.echo(f"served by {answer.node} at {answer.timing.tokens_per_s:.1f} tokens/s")
    click.echo("what to type next:")
    for command in (f"chat {model}", "status", "down"):
        click.echo(f"  {context.command(command)}")


def _step_aside(state: StateFolder) -> None:
    """Take a free port when another has the default one; agents find the head all the same."""
    bind = head_config(state, os.environ).fleet.bind
    if Supervisor(state).running() or bind != HeadConfig().fleet.bind:
        return
    try:
        check_port(bind)
    except PortInUse:
        note(f"another process has {bind}; taking a free port")
        os.environ["SUPERFLUID_FLEET_BIND"] = "tcp://127.0.0.1:0"


def _ask(context: CliContext, model: str, prompt: str) -> Answer:
    click.echo(f"> {prompt}")
    with context.client() as client:
        messages = [{"role": "user", "content": prompt}]
        return print_stream(client.chat(model, messages, max_new=_MAX_NEW, temperature=0.0))
