"""What is told of agents before they are started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.check import check_agent
from bus.crypto import KeyPair
from bus.keys import new_token
from bus.secret_files import create_secret_file
from bus.state import StateFolder
from tests.harness.models import toy_model_folder


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    made = StateFolder.resolve(tmp_path / "s")
    public = KeyPair.from_secret(bytes(range(32))).public
    create_secret_file(made.keys / "fleet.token", new_token(public))
    (made.models / "toy").symlink_to(toy_model_folder().path)
    return made


def _problems(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["about"], each["code"]) for each in found["problems"]]


def test_one_that_can_start(state: StateFolder) -> None:
    (state.path / "agent.toml").write_text('[node]\nidentity = "gpu-1"\n')
    assert check_agent(state, "node-1") == {
        "name": "node-1",
        "configured": True,
        "problems": [],
        "identity": "gpu-1",
        "head": "",
        "token": str(state.keys / "fleet.token"),
        "models": ["toy"],
        "not_served": [],
    }
    assert not (state.nodes / "node-1").exists()


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('[node]\njion = ["tcp://h:1"]\n', "the nearest is node.join"),
        ('[node]\njoin = "tcp://h:1"\n', "a list of texts"),
        ('[node]\njoin = ["127.0.0.1:8454"]\n', "as in tcp://127.0.0.1:8454"),
        ("[node\n", "no TOML"),
        ('[worker]\ndevice = "gpu"\n', "auto, cpu, cuda"),
    ],
)
def test_a_wrong_file_is_found(state: StateFolder, toml: str, says: str) -> None:
    (state.path / "agent.toml").write_text(toml)
    found = check_agent(state, "node-1")
    assert not found["configured"]
    (problem,) = found["problems"]
    assert (problem["about"], problem["code"]) == ("configuration", "config_invalid")
    assert says in problem["message"]


def test_one_of_several_may_have_a_file_of_its_own(state: StateFolder) -> None:
    (state.nodes / "node-2").mkdir()
    (state.nodes / "node-2" / "agent.toml").write_text("[worker]\nlane = 2\n")
    assert check_agent(state, "node-1")["configured"]
    assert not check_agent(state, "node-2")["configured"]


def test_a_misspelt_variable_is_found(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERFLUID_WORKER_DEVCE", "cpu")
    assert _problems(check_agent(state, "node-1")) == [("configuration", "config_invalid")]


def test_all_that_is_missing_is_told(state: StateFolder) -> None:
    (state.keys / "fleet.token").unlink()
    (state.path / "agent.toml").write_text(
        '[node]\njoin = ["tcp://h:1"]\n[models]\nnames = ["llama9"]\n'
    )
    found = check_agent(state, "node-1")
    assert _problems(found) == [("token", "token_refused"), ("models", "not_found")]
    assert found["head"] == "tcp://h:1"


def test_without_authentication_no_token_is_missed(state: StateFolder) -> None:
    (state.keys / "fleet.token").unlink()
    (state.path / "agent.toml").write_text("[node]\ninsecure_no_auth = true\n")
    found = check_agent(state, "node-1")
    assert (found["problems"], found["token"]) == ([], "")


def test_a_broken_model_beside_a_good_one_is_not_served(state: StateFolder) -> None:
    (state.models / "broken").mkdir()
    found = check_agent(state, "node-1")
    assert (found["problems"], found["models"]) == ([], ["toy"])
    assert "superfluid.json" in found["not_served"][0]
    (state.models / "toy").unlink()
    assert _problems(check_agent(state, "node-1")) == [("models", "model_incomplete")]
