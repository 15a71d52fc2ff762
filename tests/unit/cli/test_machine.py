"""Whether a machine has the head or joins one elsewhere, and what is said where it has none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus.agent_status import AgentLink, AgentStatus, write_agent_status
from bus.state import StateFolder
from head.cli.command_line import cli
from head.cli.context import CliContext
from head.cli.machine import changed_since_start, head_was_here, look_at_machine, why_no_head
from head.cli.models import next_step
from head.cli.supervision import ServiceProcess

JOIN = '[node]\njoin = ["tcp://192.0.2.1:8454"]\n'


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder.resolve(tmp_path / "state")


def sfctl(state: StateFolder, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--state", str(state.path), *words])


def joins(state: StateFolder) -> None:
    (state.path / "agent.toml").write_text(JOIN)


def started_once(state: StateFolder) -> None:
    (state.store / "head.db").touch()


def test_a_key_that_was_left_does_not_make_a_head(state: StateFolder) -> None:
    joins(state)
    (state.keys / "head.key").touch()
    assert not head_was_here(state)
    assert not look_at_machine(state).runs_head


def test_a_store_or_a_configuration_does(state: StateFolder) -> None:
    joins(state)
    (state.path / "head.toml").touch()
    assert look_at_machine(state).runs_head
    (state.path / "head.toml").unlink()
    started_once(state)
    assert look_at_machine(state).runs_head


def test_a_fresh_machine_may_be_either(state: StateFolder) -> None:
    machine = look_at_machine(state)
    assert (machine.runs_head, machine.settled) == (True, False)
    shown = sfctl(state, "doctor").stdout
    assert "or on a node's machine copy the head's token file there" in shown
    assert "or as a node: set join in agent.toml, then " in shown


@pytest.mark.parametrize("command", ["new", "rotate"])
def test_no_token_is_made_on_a_nodes_machine(state: StateFolder, command: str) -> None:
    joins(state)
    refused = sfctl(state, "token", command)
    assert refused.exit_code == 1
    assert "tcp://192.0.2.1:8454" in refused.stderr
    assert f"copy that head's token file to {state.keys / 'fleet.token'}" in refused.stderr
    assert "--force" in refused.stderr
    assert list(state.keys.iterdir()) == []


def test_a_token_is_made_where_a_head_was_or_by_force(state: StateFolder) -> None:
    joins(state)
    assert sfctl(state, "token", "new", "--force").exit_code == 0
    started_once(state)
    assert sfctl(state, "token", "rotate").exit_code == 0


def test_agents_alone_need_a_head_that_is_named(state: StateFolder) -> None:
    refused = sfctl(state, "up", "--agent-only")
    assert refused.exit_code == 2
    assert "no head is named for node-1" in refused.stderr
    assert "set join in [node] of agent.toml" in refused.stderr


def test_clients_of_a_node_are_sent_to_the_heads_machine(state: StateFolder) -> None:
    folder = state.nodes / "node-1"
    folder.mkdir()
    link = AgentLink(peer="head h", address="tcp://192.0.2.1:8454", up=True)
    write_agent_status(folder, AgentStatus(1, "n", link, ()))
    for command in (("run", "toy", "hi"), ("node", "ls")):
        refused = sfctl(state, *command)
        assert refused.exit_code == 4
        assert "look for theirs at tcp://192.0.2.1:8454" in refused.stderr
        assert "work on the head's machine" in refused.stderr
    started_once(state)
    assert why_no_head(state, "none answers") == "none answers"


@pytest.mark.parametrize(
    ("group", "own", "changed"),
    [
        ("head", False, "head.toml"),
        ("node", False, "agent.toml"),
        ("node", True, "nodes/node-1/agent.toml"),
    ],
)
def test_a_file_that_is_newer_than_its_service(
    state: StateFolder, group: str, own: bool, changed: str
) -> None:
    if own:
        (state.nodes / "node-1").mkdir()
    name = "head" if group == "head" else "node-1"
    running = [ServiceProcess(name, group, "RUNNING", pid=1, started=1000)]
    assert changed_since_start(state, running) == ""
    file = state.path / changed
    file.touch()
    # It was started at 1000.0 to 1000.999.
    for written_s, is_newer in ((1000.5, False), (1001.0, True)):
        os.utime(file, (written_s, written_s))
        found = changed_since_start(state, running)
        assert found.startswith(f"{file} changed since the start") == is_newer
    ended = [ServiceProcess(name, group, "BACKOFF", pid=0, started=1000)]
    assert changed_since_start(state, ended) == ""


def test_a_model_is_not_removed_when_nobody_is_there_to_be_asked(state: StateFolder) -> None:
    folder = state.models / "toy"
    folder.mkdir()
    result = sfctl(state, "model", "rm", "toy")
    assert result.exit_code == 2
    assert "add --yes" in result.stderr
    assert folder.exists()


def test_what_comes_after_an_import_begins_with_a_token_where_there_is_none(
    state: StateFolder,
) -> None:
    context = CliContext(state.path, None, None)
    assert "token new" in next_step(context, state, "toy")
    assert sfctl(state, "token", "new").exit_code == 0
    assert next_step(context, state, "toy") == context.command("up")


def test_on_a_nodes_machine_only_agents_are_started_after_an_import(state: StateFolder) -> None:
    joins(state)
    assert next_step(CliContext(state.path, None, None), state, "toy").endswith("up --agent-only")
