"""What `up` finds before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.config import load_config
from bus.errors import ConfigInvalid, TokenRefused
from bus.state import StateFolder
from head.cli import preflight
from head.cli.agents import AgentPlan, check_agents
from head.cli.keys import make_token
from head.config import FleetSection, HeadConfig


def _state(path: Path) -> StateFolder:
    return StateFolder.resolve(path)


@pytest.mark.parametrize("name", ["50%", 'a"b'])
def test_a_path_that_supervisord_would_misread(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigInvalid, match="--state DIR"):
        preflight.check_paths(_state(tmp_path / name))


def test_an_ordinary_path_is_fine(tmp_path: Path) -> None:
    preflight.check_paths(_state(tmp_path / "a b"))
    preflight.check_open_files()


def test_a_missing_token_names_the_command(tmp_path: Path) -> None:
    state = _state(tmp_path)
    with pytest.raises(TokenRefused, match="sfctl token new"):
        preflight.check_token(state, HeadConfig(), "sfctl token new")
    make_token(state, state.keys / "fleet.token")
    preflight.check_token(state, HeadConfig(), "sfctl token new")


def test_a_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    state = _state(tmp_path)
    (state.path / "head.toml").write_text("[queue]\nlimits = 3\n")
    with pytest.raises(ConfigInvalid, match=r"queue\.limit"):
        preflight.head_config(state, {})


def test_the_shipped_head_toml_is_every_default() -> None:
    shipped = Path(__file__).parents[3] / "conf" / "head.toml"
    assert load_config(HeadConfig, shipped, {}, {}) == HeadConfig()


@pytest.mark.parametrize(
    ("bind", "says"),
    [
        ("127.0.0.1:8555", "as in tcp://127.0.0.1:8555"),
        ("tcp://127.0.0.1:80000", "up to 65535"),
        ("tcp://127.0.0.1", "tcp://HOST:PORT"),
        ("8454", "bind in \\[fleet\\] of head.toml"),
    ],
)
def test_what_is_no_address_to_listen_at(bind: str, says: str) -> None:
    with pytest.raises(ConfigInvalid, match=says):
        preflight.check_port(bind)


def test_agents_that_could_never_join_are_found() -> None:
    deaf = HeadConfig(fleet=FleetSection(bind=""))
    with pytest.raises(ConfigInvalid, match="node-1 could not reach it; set bind"):
        preflight.check_joinable(deaf, [AgentPlan("node-1")])
    preflight.check_joinable(deaf, [AgentPlan("node-1", head="tcp://other:8454")])
    preflight.check_joinable(deaf, [])
    preflight.check_joinable(HeadConfig(), [AgentPlan("node-1")])


def test_agents_with_one_identity_are_found() -> None:
    check_agents([AgentPlan("node-1", "a"), AgentPlan("node-2", "b")])
    with pytest.raises(ConfigInvalid, match="node-1 and node-2 would both be a"):
        check_agents([AgentPlan("node-1", "a"), AgentPlan("node-2", "a")])
    broken = AgentPlan("node-1", "a", problems=(("token", TokenRefused("no token")),))
    with pytest.raises(TokenRefused, match="no token"):
        check_agents([broken])
