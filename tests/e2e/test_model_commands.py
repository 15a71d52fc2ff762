"""`sfctl model check|show|rm`, with the program that they run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.models.sources import known_names
from bus.agent_status import AgentLink, AgentModel, AgentStatus, write_agent_status
from bus.file_lock import FileLock
from bus.state import StateFolder
from head.cli.command_line import cli
from head.cli.model_store import default_name
from head.cli.model_use import serving_agents
from tests.harness.foreign_folders import OptimumGraph, write_optimum
from tests.harness.gguf_models import SmallModel, write_model
from tests.harness.models import toy_model_folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with the toy model in it."""
    folder = StateFolder.resolve(tmp_path / "state")
    shutil.copytree(toy_model_folder().path, folder.models / "toy")
    return folder.path


def sfctl(state: Path, *arguments: object, stdin: str | None = None) -> Result:
    command = ["--state", str(state), "model", *map(str, arguments)]
    return CliRunner().invoke(cli, command, input=stdin)


def toy_export(state: Path) -> Path:
    """A folder that can be imported: the toy, as another program has it."""
    assert sfctl(state, "export", "toy", "--genai", state / "out").exit_code == 0
    return state / "out"


def test_the_help_lists_the_names_that_can_be_pulled(state: Path) -> None:
    for command in ("import", "pull"):
        words = sfctl(state, command, "--help").stdout.replace(",", " ").replace(".", " ").split()
        assert set(known_names()) <= set(words)


@pytest.mark.parametrize("arguments", [("",), (" ",), ("smollm2", "--name", "")])
def test_an_empty_name_imports_nothing(state: Path, arguments: tuple[str, ...]) -> None:
    result = sfctl(state, "import", *arguments)
    assert result.exit_code == 2
    assert "is empty" in result.stderr


def test_check_says_what_a_file_is(state: Path, tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", SmallModel(family="qwen3"))
    result = sfctl(state, "check", file)
    assert result.exit_code == 0
    lines = [line.split(None, 1) for line in result.stdout.splitlines()]
    assert ["usable", "yes"] in lines
    assert ["architecture", "qwen3"] in lines
    assert ["window", "256"] in lines
    shown = json.loads(sfctl(state, "check", file, "-o", "json").stdout)
    assert (shown["usable"], shown["lanes"]) == (True, 8)


def test_check_says_why_not_and_fails(state: Path, tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", SmallModel())
    file.write_bytes(file.read_bytes()[:-100_000])
    result = sfctl(state, "check", file)
    assert result.exit_code == 1
    assert "can not be served: " in result.stderr
    assert "download it again" in result.stderr
    assert "can not be served" not in result.stdout
    shown = json.loads(sfctl(state, "check", file, "-o", "json").stdout)
    assert shown["usable"] is False
    assert len(shown["reasons"]) == 1


def test_folders_of_other_programs(state: Path, tmp_path: Path) -> None:
    source = write_optimum(tmp_path / "Some-Model", OptimumGraph().model())
    result = sfctl(state, "check", source)
    assert result.exit_code == 0
    assert "note: import would rewrite onnx/model_q4.onnx" in result.stderr
    lines = [line.split(None, 1) for line in result.stdout.splitlines()]
    assert ["kind", "optimum"] in lines
    result = sfctl(state, "import", source, "--variant", "q4")
    assert result.exit_code == 0
    assert result.stdout.strip() == str(state / "models" / "some-model")
    assert sfctl(state, "check", "some-model", "--verify").exit_code == 0
    (source / "config.json").write_text("{}")
    for command in ("check", "import"):
        result = sfctl(state, command, source)
        assert result.exit_code == 1
        assert "has no usable max_position_embeddings" in result.stderr
    exported = tmp_path / "out"
    assert sfctl(state, "export", "toy", "--genai", exported).exit_code == 0
    assert sfctl(state, "import", exported, "--name", "toy-again").exit_code == 0
    assert sfctl(state, "show", "toy-again").exit_code == 0


def test_check_takes_a_model_by_its_name(state: Path) -> None:
    assert sfctl(state, "check", "toy", "--verify").exit_code == 0
    data = state / "models" / "toy" / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])
    result = sfctl(state, "check", "toy")
    assert result.exit_code == 1
    assert "model.onnx.data has" in result.stderr


@pytest.mark.parametrize("command", ["check", "show", "rm"])
def test_nothing_of_that_name(state: Path, command: str) -> None:
    result = sfctl(state, command, "nothing", *["--yes"] * (command == "rm"))
    assert result.exit_code == 5
    assert "there is no" in result.stderr
    assert "nothing" in result.stderr


def test_show_tells_what_the_record_says(state: Path) -> None:
    result = sfctl(state, "show", "toy")
    assert result.exit_code == 0
    facts = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert facts["template_file"] == "chat_template.jinja"
    assert facts["source"] == "kind=toy, seed=7"
    assert facts["eos_ids_by_file"] == "superfluid.json=256, 258, genai_config.json=256, 258"
    shown = json.loads(sfctl(state, "show", "toy", "-o", "json").stdout)
    assert shown["files"]["tokenizer.json"]["size"] > 0


def test_a_damaged_file_fails_in_check_and_import_alike(state: Path, tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", SmallModel())
    file.write_bytes(file.read_bytes()[:-100_000])
    codes = [sfctl(state, command, file).exit_code for command in ("check", "import")]
    assert codes == [1, 1]
    assert sfctl(state, "import", file, "--name", "no/name").exit_code == 2


def test_a_model_of_odd_figures_is_refused_by_its_file_with_what_to_do(
    state: Path, tmp_path: Path
) -> None:
    file = write_model(tmp_path / "odd.gguf", SmallModel(kv_heads=3))
    result = sfctl(state, "import", file)
    assert result.exit_code == 1
    assert f"{file} can not be imported: 4 heads over 3 of keys" in result.stderr
    assert f" model check {file}" in result.stderr


def test_a_name_that_no_model_can_have_is_proposed_to_nobody(state: Path) -> None:
    result = sfctl(state, "show", "../../..")
    assert result.exit_code == 5
    assert "--name" not in result.stderr
    assert "(there: toy); name one of them" in result.stderr


@pytest.mark.parametrize("arguments", [("check", ""), ("export", "", "--genai", "out")])
def test_an_empty_name_is_no_model(state: Path, arguments: tuple[str, ...]) -> None:
    result = sfctl(state, *arguments)
    assert result.exit_code == 2
    assert "is empty" in result.stderr


def test_rm_asks_first(state: Path) -> None:
    folder = state / "models" / "toy"
    refused = sfctl(state, "rm", "toy", stdin="n\n")
    assert refused.exit_code == 1
    assert folder.is_dir()
    assert sfctl(state, "rm", "toy", stdin="y\n").exit_code == 0
    assert list(folder.parent.iterdir()) == []


def test_rm_takes_a_broken_folder_too(state: Path) -> None:
    (state / "models" / "toy" / "superfluid.json").unlink()
    result = sfctl(state, "rm", "toy", "--yes")
    assert result.exit_code == 0
    assert "removed" in result.stderr
    assert not (state / "models" / "toy").exists()


def test_rm_never_leaves_the_folder_of_models(state: Path) -> None:
    result = sfctl(state, "rm", "../store", "--yes")
    assert result.exit_code == 2
    assert (state / "store").is_dir()


def test_rm_refuses_while_an_agent_serves_it(state: Path) -> None:
    node = state / "nodes" / "node-1"
    node.mkdir()
    models = (AgentModel(name="toy", phase="ready"),)
    link = AgentLink(peer="", address="")
    write_agent_status(node, AgentStatus(1, "node-1", link, models))
    with FileLock(node / "agent.lock"):
        assert serving_agents(StateFolder.find(state), "toy") == ["node-1"]
        assert serving_agents(StateFolder.find(state), "other") == []
        result = sfctl(state, "rm", "toy", "--yes")
        assert result.exit_code == 7
        assert "node-1 of this machine serves toy" in result.stderr
        assert (state / "models" / "toy").is_dir()
        tokenizer = state / "models" / "toy" / "tokenizer.json"
        before = tokenizer.stat().st_ino
        again = sfctl(state, "import", toy_export(state), "--name", "toy")
        assert again.exit_code == 7
        assert "node-1 of this machine serves toy, so it is not replaced: unload" in again.stderr
        assert " model unload toy node-1) and load it again" in again.stderr
        assert "with --name" in again.stderr
        assert tokenizer.stat().st_ino == before
        new = sfctl(state, "import", state / "out", "--name", "new")
        assert new.stderr.splitlines()[-1].endswith(" model load new node-1")
        failed = (AgentModel(name="toy", phase="failed"),)
        write_agent_status(node, AgentStatus(1, "node-1", link, failed))
        mended = sfctl(state, "import", state / "out", "--name", "toy")
        assert mended.exit_code == 0
        assert " model unload toy node-1 && " in mended.stderr
    idle = sfctl(state, "import", state / "out", "--name", "newer")
    assert idle.stderr.splitlines()[-1].endswith(" up")
    # the status file outlives its agent
    assert serving_agents(StateFolder.find(state), "toy") == []
    assert sfctl(state, "rm", "toy", "--yes").exit_code == 0


def test_parts_of_a_split_file_name_the_whole() -> None:
    assert default_name(Path("Qwen2-7B-Q4_0-00001-of-00003.gguf")) == "qwen2-7b-q4_0"
    assert default_name(Path("SmolLM2.Q4_1.gguf")) == "smollm2.q4_1"
