"""`model split`, and `model import` of one stage, at the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bus.agent_status import AgentLink, AgentModel, AgentStatus, write_agent_status
from bus.file_lock import FileLock
from bus.state import StateFolder
from head.cli.command_line import cli
from tests.harness.foreign_folders import OptimumGraph, write_optimum
from tests.harness.gguf_models import SmallModel, write_model
from tests.harness.models import toy_model_folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with the toy model in it."""
    folder = StateFolder.resolve(tmp_path / "state")
    shutil.copytree(toy_model_folder().path, folder.models / "toy")
    return folder.path


def sfctl(state: Path, *arguments: object) -> Result:
    return CliRunner().invoke(cli, ["--state", str(state), "model", *map(str, arguments)])


def listed(state: Path) -> dict[str, Any]:
    rows = json.loads(sfctl(state, "ls", "-o", "json").stdout)
    return {row["name"]: row.get("stage") for row in rows if row["usable"]}


def test_a_model_is_split_and_listed(state: Path) -> None:
    assert "stage" not in sfctl(state, "ls").stdout
    result = sfctl(state, "split", "toy", "--stages", 2)
    assert result.exit_code == 0
    names = ["toy.1of2", "toy.2of2"]
    assert result.stdout.splitlines() == [str(state / "models" / name) for name in names]
    assert "1/2 of toy, layers 0-0 of 2" in result.stderr
    assert "model load toy.2of2 NODE" in result.stderr
    assert listed(state) == {
        "toy": None,
        "toy.1of2": "1/2 of toy, layers 0-0 of 2",
        "toy.2of2": "2/2 of toy, layers 1-1 of 2",
    }
    assert "2/2 of toy, layers 1-1 of 2" in sfctl(state, "ls").stdout
    for name in names:
        checked = sfctl(state, "check", name, "--verify")
        assert checked.exit_code == 0
        assert "of toy, layers" in checked.stdout
        assert "of toy, layers" in sfctl(state, "show", name).stdout
    again = sfctl(state, "split", "toy", "--layers", "0-0,1-1")
    assert again.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "Give --stages N, or --layers"),
        (("--stages", 2, "--layers", "0-0,1-1"), 2, "Give --stages N, or --layers"),
        (("--stages", 0), 2, "one stage is the whole model"),
        (("--stages", 3), 2, "2 layers can not be in 3 stages"),
        (("--layers", "0-1,1-1"), 2, "two stages have layer 1"),
        (("--layers", "0-0"), 2, "one stage is the whole model"),
        (("--layers", "0-0,2-2"), 2, "no stage has layer 1"),
    ],
)
def test_a_split_that_can_not_be_is_one_sentence(
    state: Path, arguments: tuple[object, ...], code: int, says: str
) -> None:
    result = sfctl(state, "split", "toy", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr
    assert listed(state) == {"toy": None}


@pytest.mark.parametrize("name", ["nobody", "..", "a/b", ""])
def test_a_model_that_is_not_there_is_not_split(state: Path, name: str) -> None:
    result = sfctl(state, "split", name, "--stages", 2)
    assert result.exit_code == 5
    assert "there is no model" in result.stderr


def test_a_damaged_model_is_not_split(state: Path) -> None:
    data = state / "models" / "toy" / "model.onnx.data"
    changed = bytearray(data.read_bytes())
    changed[100] ^= 1
    data.write_bytes(changed)
    result = sfctl(state, "split", "toy", "--stages", 2)
    assert result.exit_code == 1
    assert "model.onnx.data is damaged" in result.stderr


def test_a_stage_that_is_served_is_not_replaced(state: Path) -> None:
    assert sfctl(state, "split", "toy", "--stages", 2).exit_code == 0
    node = StateFolder.find(state).nodes / "n1"
    node.mkdir(parents=True)
    link = AgentLink(peer="", address="")
    served = (AgentModel(name="toy.2of2", phase="ready"),)
    write_agent_status(node, AgentStatus(1, "n1", link, served))
    with FileLock(node / "agent.lock"):
        result = sfctl(state, "split", "toy", "--stages", 2)
    assert result.exit_code == 7
    assert "n1 of this machine serves toy.2of2, so it is not replaced" in result.stderr


# --- one stage alone ----------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_model(tmp_path / "Small.gguf", SmallModel(layers=3, choose=lambda name: "Q8_0"))


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (("--stage", "1/2"), "small.1of2"),
        (("--stage", "2/3", "--layers", "0-0,1-1,2-2"), "small.2of3"),
        (("--layers", "1-2"), "small.2of2"),
        (("--stage", "3/3", "--name", "mine"), "mine.3of3"),
    ],
)
def test_one_stage_is_imported(
    state: Path, file: Path, arguments: tuple[str, ...], folder: str
) -> None:
    result = sfctl(state, "import", file, *arguments)
    assert result.exit_code == 0
    assert result.stdout.strip() == str(state / "models" / folder)
    assert {*listed(state)} == {"toy", folder}
    assert sfctl(state, "check", folder, "--verify").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--stage", "3/2"), "'3/2' is no stage"),
        (("--stage", "1/4"), "3 layers can not be in 4 stages"),
        (("--layers", "0-2"), "all of the model's; import it without --layers"),
        (("--layers", "1-3"), "the last layer is 2"),
        (("--stage", "1/2", "--variant", "q4"), "has no variants"),
        (("--stage", "1/2", "--name", "a/b"), "is no model name"),
    ],
)
def test_a_stage_that_can_not_be_is_one_sentence(
    state: Path, file: Path, arguments: tuple[str, ...], says: str
) -> None:
    result = sfctl(state, "import", file, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert listed(state) == {"toy": None}


def test_of_a_folder_no_stage_is_made_alone(state: Path, tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "other", OptimumGraph().model())
    result = sfctl(state, "import", source, "--stage", "1/2")
    assert result.exit_code == 2
    assert "import it whole, and split it with `sfctl" in result.stderr
    assert "model split other`" in result.stderr
    assert sfctl(state, "import", source).exit_code == 0
    assert sfctl(state, "split", "other", "--stages", 2).exit_code == 0
    assert listed(state)["other.2of2"] == "2/2 of other, layers 1-1 of 2"
