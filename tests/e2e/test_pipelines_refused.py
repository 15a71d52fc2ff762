"""Stages that make no whole model: requests are refused, and everyone says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.models.folder import ModelFolder
from agent.models.importer import import_gguf
from agent.models.split import split_model
from agent.models.stages import even_stages, listed_stages
from bench.stage_cluster import StageCluster
from bus.errors import NoNode
from tests.harness.cluster_checks import wait_for
from tests.harness.gguf_models import SmallModel, write_model
from tests.harness.models import stage_folders, toy_model_folder

SETTINGS = {"SUPERFLUID_TEXT_PROCESSES": "1"}
PROMPT = [1, 2, 3]


class Incomplete(StageCluster):
    """Ready when all workers are loaded, whether or not they make up a model."""

    def wait_ready(self) -> None:
        wait_for(self.is_loaded, "all workers are loaded")

    def is_loaded(self) -> bool:
        models = [model for node in self.client.nodes() for model in node["models"]]
        served = sum(len(list(self.models_of(name).iterdir())) for name in self.names)
        waiting = [model["phase"] == "ready" or model["problem"] for model in models]
        return len(models) == served and all(waiting)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[ModelFolder]:
    """The three stages of a model called `small`."""
    return small(tmp_path_factory.mktemp("one"), hidden=256)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[ModelFolder]:
    """Those of another one that is called so too."""
    return small(tmp_path_factory.mktemp("other"), hidden=512)


def small(path: Path, hidden: int) -> list[ModelFolder]:
    model = SmallModel(layers=3, hidden=hidden, choose=lambda name: "Q8_0")
    whole = import_gguf(write_model(path / "small.gguf", model), path / "small")
    return split_model(whole, path, even_stages(3, 3))


def fleet(**served: Sequence[ModelFolder]) -> Incomplete:
    return Incomplete(served, settings=SETTINGS)


def refusals(cluster: StageCluster, name: str) -> list[str]:
    """What is said of a model: the error of a request, of `explain`, and the node's problem."""
    with pytest.raises(NoNode) as raised:
        cluster.client.generate(cluster.model, PROMPT, max_new=5).result()
    program = Path(sys.executable).with_name("sfctl")
    explained = subprocess.run(
        [program, "--state", cluster.state, "explain", cluster.model, "--tokens", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert explained.returncode == 3
    listed = json.loads(cluster.sfctl("node", "ls", "-o", "json"))
    problems = [
        " ".join(model["problem"] for model in node["models"])
        for node in listed
        if node["identity"] == name
    ]
    return [raised.value.message, explained.stdout + explained.stderr, *problems]


def test_a_layer_that_no_stage_has(parts: list[ModelFolder]) -> None:
    with fleet(a=[parts[0]], b=[parts[2]]) as cluster:
        said = "has layers 2-2 of 3 of small, and no node has layers 1-1 for it now"
        assert [said in each for each in refusals(cluster, "b")] == [True] * 3
        # As soon as a node has them, it is whole.
        cluster.names.append("c")
        cluster.put("c", parts[1].path)
        cluster.start_node("c")
        wait_for(cluster.is_whole, "the stages are chained")
        assert cluster.chains() == [["a", "c", "b"]]
        assert len(cluster.client.generate("small", PROMPT, max_new=5).result().tokens) > 0


def test_ranges_that_do_not_join_and_those_of_two_splits_that_do(
    parts: list[ModelFolder], tmp_path: Path
) -> None:
    whole = ModelFolder.open(parts[0].path.parent / "small")
    wide, _ = split_model(whole, tmp_path / "wide", listed_stages(3, "0-1,2-2"))
    _, last = split_model(whole, tmp_path / "last", listed_stages(3, "0-0,1-2"))
    with fleet(a=[wide], b=[last]) as cluster:
        said = "no node has layers 0-0 for it now (a has layers 0-1, which do not join at 0 and 1"
        assert [said in each for each in refusals(cluster, "b")] == [True] * 3
        cluster.names.append("c")
        cluster.put("c", parts[0].path)
        cluster.start_node("c")
        wait_for(cluster.is_whole, "the stages are chained")
        assert cluster.chains() == [["c", "b"]]


def test_stages_of_two_models_of_one_name(
    parts: list[ModelFolder], others: list[ModelFolder]
) -> None:
    with fleet(a=others[:2], b=[parts[2]]) as cluster:
        said = "a has layers 0-0 of another small: stages are to be made of one file, in one way"
        assert [said in each for each in refusals(cluster, "b")] == [True] * 3


def test_no_node_has_the_last_stage_and_none_answers_for_a_first_one() -> None:
    first, _ = stage_folders(toy_model_folder(), 2)
    with fleet(a=[first]) as cluster:
        said = "has only layers 0-0 of 2 of toy, and the last ones are what requests go to"
        with pytest.raises(NoNode, match=said):
            cluster.client.generate("toy", PROMPT, max_new=5).result()
        with pytest.raises(NoNode, match="has layers 0-0 of 2 of toy under this name: ask for toy"):
            cluster.client.generate("toy.1of2", PROMPT, max_new=5).result()
