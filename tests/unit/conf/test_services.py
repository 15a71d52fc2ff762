"""What the service files promise, read as supervisord and honcho read them."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path
from typing import Any

import pytest
from honcho.environ import parse_procfile
from supervisor.options import ServerOptions

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf" / "supervisord.conf"


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerOptions:
    """The configuration as supervisord itself parses it, for a state folder with a space."""
    state = tmp_path / "my state"
    for folder in ("run", "log"):
        (state / folder).mkdir(parents=True)
    monkeypatch.setenv("SUPERFLUID_STATE", str(state))
    monkeypatch.setenv("SUPERFLUID_RUN", str(state / "run"))
    monkeypatch.setenv("SUPERFLUID_PYTHON", "/opt/py/bin/python")
    monkeypatch.setenv("SUPERFLUID_HEADS", "1")
    monkeypatch.setenv("SUPERFLUID_NODES", "3")
    made = ServerOptions()
    made.realize(["-c", str(CONF)])
    return made


def _programs(options: ServerOptions) -> dict[str, list[Any]]:
    return {group.name: list(group.process_configs) for group in options.process_group_configs}


def test_the_procfile_runs_the_same_commands(options: ServerOptions, tmp_path: Path) -> None:
    procfile = parse_procfile((ROOT / "Procfile").read_text()).processes
    state = str(tmp_path / "my state")
    expanded = {
        name: [
            word.replace("$SUPERFLUID_PYTHON", "/opt/py/bin/python").replace(
                "$SUPERFLUID_STATE", state
            )
            for word in shlex.split(command)
        ]
        for name, command in procfile.items()
    }
    first = {name: configs[0] for name, configs in _programs(options).items()}
    assert expanded == {name: shlex.split(c.command) for name, c in first.items()}
    assert expanded["head"] == ["/opt/py/bin/python", "-P", "-m", "head", "--state", state]


def test_each_node_has_its_own_name_and_log(options: ServerOptions) -> None:
    nodes = _programs(options)["node"]
    assert [n.name for n in nodes] == ["node-1", "node-2", "node-3"]
    logs = {Path(n.stdout_logfile).name for n in nodes}
    assert logs == {"node-1.log", "node-2.log", "node-3.log"}
    for node in nodes:
        assert shlex.split(node.command)[-2:] == ["--name", node.name]


def test_agents_end_their_own_workers_and_the_head_starts_first(options: ServerOptions) -> None:
    programs = _programs(options)
    priorities = {g.name: g.priority for g in options.process_group_configs}
    assert priorities == {"head": 10, "node": 20}
    for config in (c for configs in programs.values() for c in configs):
        assert not config.stopasgroup
        assert config.killasgroup


def test_control_is_a_private_socket_and_no_port(options: ServerOptions, tmp_path: Path) -> None:
    (server,) = options.server_configs
    assert server["section"] == "unix_http_server"
    assert server["file"] == str(tmp_path / "my state" / "run" / "supervisor.sock")
    assert server["chmod"] == 0o700
    assert options.umask == 0o077


@pytest.mark.parametrize(("heads", "nodes"), [("0", "2"), ("1", "0")])
def test_a_machine_may_run_only_one_kind(
    options: ServerOptions, monkeypatch: pytest.MonkeyPatch, heads: str, nodes: str
) -> None:
    monkeypatch.setenv("SUPERFLUID_HEADS", heads)
    monkeypatch.setenv("SUPERFLUID_NODES", nodes)
    made = ServerOptions()
    made.realize(["-c", str(CONF)])
    assert {n: len(c) for n, c in _programs(made).items()} == {
        "head": int(heads),
        "node": int(nodes),
    }


def test_no_value_has_a_percent_trap() -> None:
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",))
    parser.read(CONF)
    for section in parser.sections():
        for key, value in parser.items(section):
            rest = value.replace("%(process_num)d", "")
            while "%(ENV_SUPERFLUID_" in rest:
                start = rest.index("%(ENV_SUPERFLUID_")
                rest = rest[:start] + rest[rest.index(")s", start) + 2 :]
            assert "%" not in rest, f"[{section}] {key}"
