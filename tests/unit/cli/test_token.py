"""`token new`: what it writes, how, and what it never prints."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus.keys import fingerprint, load_or_create_static_key, load_token
from head.cli import cli


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def _token_new(state: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["--state", str(state), "token", "new", *options])


def test_it_makes_token_and_key_for_their_owner_alone(state: Path) -> None:
    assert _token_new(state).exit_code == 0
    for file in (state / "keys" / "head.key", state / "keys" / "fleet.token"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((state / "keys").stat().st_mode) == 0o700


def test_the_token_is_of_this_heads_key_and_is_never_printed(state: Path) -> None:
    result = _token_new(state)
    file = state / "keys" / "fleet.token"
    name = fingerprint(load_or_create_static_key(state / "keys" / "head.key").public)
    assert load_token(file).head_fingerprint == name
    assert str(file) in result.stdout
    assert name in result.stdout
    secret = file.read_text().strip().split(".")[2]
    assert secret not in result.output


def test_json(state: Path) -> None:
    shown = json.loads(_token_new(state, "-o", "json").stdout)
    assert set(shown) == {"file", "head_fingerprint"}


def test_it_refuses_to_lock_nodes_out(state: Path) -> None:
    _token_new(state)
    before = (state / "keys" / "fleet.token").read_text()
    result = _token_new(state)
    assert result.exit_code == 1
    assert "--rotate" in result.stderr
    assert (state / "keys" / "fleet.token").read_text() == before


@pytest.mark.parametrize("option", ["--rotate", "--force"])
def test_rotating_keeps_the_heads_key(state: Path, option: str) -> None:
    _token_new(state)
    token, key = (state / "keys" / "fleet.token"), (state / "keys" / "head.key")
    before = token.read_text(), key.read_text()
    assert _token_new(state, option).exit_code == 0
    assert token.read_text() != before[0]
    assert key.read_text() == before[1]
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_a_key_that_others_can_read_is_6(state: Path) -> None:
    _token_new(state)
    (state / "keys" / "head.key").chmod(0o644)
    result = _token_new(state, "--rotate")
    assert result.exit_code == 6
    assert "chmod 600" in result.stderr
