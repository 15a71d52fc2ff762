"""`sfctl model plan`: what it prints of a model and a head's nodes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent.models.layer_sizes import layer_sizes
from bench.cluster import Cluster
from head.cli.command_line import cli
from tests.e2e.scripted_fleet import Fleet, Served, served, sfctl
from tests.harness.gguf_models import SmallModel, write_model
from tests.harness.models import toy_model_folder

TOY = layer_sizes(toy_model_folder().path)
#: What a stage of one layer of the toy takes at most, with 2 lanes of 100 tokens.
STAGE = TOY.overhead_bytes + TOY.every_bytes + TOY.layers[0] + TOY.head_bytes + 200 * 512


def node(name: str, memory: int, rate: float = 0.0, state: str = "up") -> dict[str, Any]:
    """A node that offers so many bytes, and has decoded with the toy model."""
    return {
        "identity": name,
        "state": state,
        "host": {"memory_free_bytes": -(-memory * 10 // 8)},
        "models": [{"name": "toy", "decode_rate": rate}],
    }


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as (script, head):
        two(script)
        yield script, head


def two(script: Fleet, memory: int = STAGE) -> None:
    """Two nodes, each for one layer of the toy."""
    script.node, script.others = node("n1", memory, 50.0), [node("n2", memory, 50.0)]


def planned(fleet: Served, *options: str) -> Result:
    small = ("--lanes", "2", "--window", "100")
    return sfctl(fleet[1], "model", "plan", str(toy_model_folder().path), *small, *options)


def test_two_nodes_share_a_model_that_neither_holds(fleet: Served) -> None:
    result = planned(fleet)
    assert result.exit_code == 0, result.output
    header, first, last = result.stdout.splitlines()
    assert header.split() == ["STAGE", "NODE", "LAYERS", "WEIGHTS", "KV", "MEMORY", "FREE", "STEP"]
    assert first.split()[:3] == ["1/2", "n1", "0-0"]
    assert last.split()[:3] == ["2/2", "n2", "1-1"]
    assert commands(result.stderr) == [
        "model split toy --layers 0-0,1-1",
        "model load toy.1of2 n1",
        "model load toy.2of2 n2",
    ]
    assert "[worker]: lanes = 2, and kv_bytes: n1 1048576, n2 1048576" in result.stderr


def commands(said: str) -> list[str]:
    """The commands to type next, without the program."""
    lines = [line.partition(" model ") for line in said.splitlines() if "sfctl" in line]
    return [f"model {rest}" for _, _, rest in lines]


def test_json_has_the_figures(fleet: Served) -> None:
    found = json.loads(planned(fleet, "-o", "json").stdout)
    first, last = found["stages"]
    assert (found["ranges"], found["layers"], found["hidden"]) == ("0-0,1-1", 2, 128)
    # both hold a table of tokens; 2 lanes of 100 tokens take 512 bytes a token and layer
    assert first["kv_bytes"] == last["kv_bytes"] == 2 * 100 * 512
    assert last["memory_bytes"] == STAGE <= last["free_bytes"] <= STAGE + 1
    assert first["end"] == last["first"] == 1
    # each node goes through the toy 50 times a second
    work = sum(TOY.layers) + TOY.head_bytes
    assert first["step_s"] == pytest.approx(TOY.layers[0] / work / 50)
    assert found["tokens_per_s_alone"] == pytest.approx(50)
    assert found["tokens_per_s"] == pytest.approx(1 / last["step_s"])
    assert len(found["commands"]) == 3


def test_one_node_that_holds_it_needs_no_stages(fleet: Served) -> None:
    two(fleet[0], 2 * STAGE)
    result = planned(fleet)
    assert result.stdout.splitlines()[1].split()[:3] == ["1/1", "n1", "0-1"]
    assert "toy fits on n1 alone" in result.stderr
    assert commands(result.stderr) == ["model load toy n1"]
    assert planned(fleet, "--node", "n2").stdout.splitlines()[1].split()[1] == "n2"


def test_a_header_is_planned_and_each_stage_imported_alone(fleet: Served, tmp_path: Path) -> None:
    small = SmallModel(layers=3, choose=lambda name: "Q8_0")
    file = write_model(tmp_path / "small.gguf", small)
    sizes = layer_sizes(file)
    two(fleet[0], sizes.overhead_bytes + sum(sizes.layers) + sizes.every_bytes)
    result = sfctl(fleet[1], "model", "plan", str(file), "--lanes", "1", "--window", "16")
    assert result.exit_code == 0, result.output
    ranges = ",".join(row.split()[2] for row in result.stdout.splitlines()[1:])
    assert commands(result.stderr) == [
        f"model import {file} --stage 1/2 --layers {ranges}",
        f"model import {file} --stage 2/2 --layers {ranges}",
        "model load small.1of2 n1",
        "model load small.2of2 n2",
    ]
    # the toy, which the nodes have measured, is not in this head's folder of models
    assert "no speed is foretold" in result.stderr


def test_what_does_not_fit_is_refused_with_what_helps(fleet: Served) -> None:
    two(fleet[0], STAGE - 100)
    result = planned(fleet)
    assert result.exit_code == 7
    assert "toy needs" in result.stderr
    assert "--lanes 1" in result.stderr
    assert planned(fleet, "--lanes", "1").exit_code == 0


@pytest.mark.parametrize(
    ("options", "code", "wrong"),
    [
        (("--node", "n9"), 5, "no node n9 is known"),
        (("--node", "n1", "--node", "n3"), 2, "node n3 is down; leave it out"),
        (("--window", "5000"), 2, "window is 5000 tokens; toy takes 1 to 4096"),
        (("--lanes", "0"), 2, "lanes is 0"),
    ],
)
def test_wrong_use(fleet: Served, options: tuple[str, ...], code: int, wrong: str) -> None:
    fleet[0].others.append(node("n3", STAGE, state="down"))
    result = planned(fleet, *options)
    assert result.exit_code == code, result.output
    assert wrong in result.stderr


def test_without_nodes_there_is_no_plan(fleet: Served) -> None:
    fleet[0].node, fleet[0].others = node("n1", STAGE, state="drained"), []
    result = planned(fleet)
    assert result.exit_code == 3
    assert "left out: node n1 is drained" in result.stderr
    assert "there is no node to plan toy for" in result.stderr
    missing = sfctl(fleet[1], "model", "plan", "nothing")
    assert missing.exit_code == 5
    assert "there is no file or model nothing" in missing.stderr


def test_a_real_head_reports_what_a_plan_needs() -> None:
    with Cluster(toy_model_folder().path, threads=1) as cluster:
        options = ["--state", str(cluster.state), "model", "plan", cluster.model, "-o", "json"]
        result = CliRunner().invoke(cli, options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (stage,) = found["stages"]
    assert (found["ranges"], found["window"]) == ("0-1", 4096)
    assert stage["memory_bytes"] <= stage["free_bytes"]
    assert found["commands"][-1].endswith(f"model load toy {stage['node']}")
