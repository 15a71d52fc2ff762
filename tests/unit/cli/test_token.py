"""`token new`, `rotate`, `retire` and `ls`: what they write, how, and what they never print."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus.keys import fingerprint, load_or_create_static_key, load_token
from head.cli.command_line import cli
from head.cli.output import human_age


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def _token(state: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--state", str(state), "token", *words])


def _secret(file: Path) -> str:
    return file.read_text().strip().split(".")[2]


def test_it_makes_token_and_key_for_their_owner_alone(state: Path) -> None:
    assert _token(state, "new").exit_code == 0
    for file in (state / "keys" / "head.key", state / "keys" / "fleet.token"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((state / "keys").stat().st_mode) == 0o700


def test_the_token_is_of_this_heads_key_and_is_never_printed(state: Path) -> None:
    result = _token(state, "new")
    file = state / "keys" / "fleet.token"
    name = fingerprint(load_or_create_static_key(state / "keys" / "head.key").public)
    assert load_token(file).head_fingerprint == name
    assert str(file) in result.stdout
    assert name in result.stdout
    assert _secret(file) not in result.output


def test_json(state: Path) -> None:
    shown = json.loads(_token(state, "new", "-o", "json").stdout)
    assert set(shown) == {"file", "head_fingerprint"}


def test_it_refuses_to_lock_nodes_out(state: Path) -> None:
    _token(state, "new")
    before = (state / "keys" / "fleet.token").read_text()
    result = _token(state, "new")
    assert result.exit_code == 1
    assert "token rotate" in result.stderr
    assert (state / "keys" / "fleet.token").read_text() == before


def test_it_goes_where_the_configuration_says(state: Path, tmp_path: Path) -> None:
    state.mkdir(mode=0o700)
    named = tmp_path / "named" / "t"
    (state / "head.toml").write_text(f'[fleet]\ntoken_file = "{named}"\n')
    assert str(named) in _token(state, "new").stdout
    assert not (state / "keys" / "fleet.token").exists()
    assert _token(state, "rotate").exit_code == 0
    assert named.with_name("t.previous").exists()


def test_rotating_keeps_the_heads_key_and_the_former_token(state: Path) -> None:
    _token(state, "new")
    token, key = (state / "keys" / "fleet.token"), (state / "keys" / "head.key")
    before = token.read_text(), key.read_text()
    rotated = _token(state, "rotate")
    assert rotated.exit_code == 0
    previous = state / "keys" / "fleet.token.previous"
    assert token.read_text() != before[0]
    assert (previous.read_text(), key.read_text()) == before
    assert load_token(token).head_fingerprint == load_token(previous).head_fingerprint
    for file in (token, previous):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert _secret(file) not in rotated.output
    assert "token retire" in rotated.stderr
    again = _token(state, "rotate")
    assert again.exit_code == 1
    assert "token retire" in again.stderr


def test_retiring_ends_the_former_token(state: Path) -> None:
    _token(state, "new")
    nothing = _token(state, "retire")
    assert nothing.exit_code == 5
    assert "no previous token" in nothing.stderr
    _token(state, "rotate")
    current = (state / "keys" / "fleet.token").read_text()
    assert _token(state, "retire").exit_code == 0
    assert not (state / "keys" / "fleet.token.previous").exists()
    assert (state / "keys" / "fleet.token").read_text() == current


def test_the_list_has_ids_and_ages_and_no_secret(state: Path) -> None:
    _token(state, "new")
    file = state / "keys" / "fleet.token"
    old = time.time() - 3 * 86_400 - 5
    os.utime(file, (old, old))
    _token(state, "rotate")
    shown = _token(state, "ls")
    previous = file.with_name("fleet.token.previous")
    first, second = shown.stdout.splitlines()[1:]
    assert first.split()[:2] == ["current", load_token(file).shown_id]
    assert second.split()[:4] == ["previous", load_token(previous).shown_id, "3", "d"]
    for each in (file, previous):
        assert _secret(each) not in shown.output
        assert load_token(each).token_id.hex() not in shown.output
    rows = json.loads(_token(state, "ls", "-o", "json").stdout)
    assert [row["token"] for row in rows] == ["current", "previous"]
    assert rows[1]["age_s"] >= 3 * 86_400


@pytest.mark.parametrize("command", ["rotate", "retire", "ls"])
def test_without_a_token_is_6(state: Path, command: str) -> None:
    result = _token(state, command)
    assert result.exit_code == 6
    assert "token new" in result.stderr


def test_a_key_that_others_can_read_is_6(state: Path) -> None:
    _token(state, "new")
    (state / "keys" / "head.key").chmod(0o644)
    result = _token(state, "rotate")
    assert result.exit_code == 6
    assert "chmod 600" in result.stderr


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.2, "0 s"), (59.9, "59 s"), (60, "1 min"), (7199, "1 h"), (172_800, "2 d")],
)
def test_ages_are_in_their_largest_unit(seconds: float, shown: str) -> None:
    assert human_age(seconds) == shown
