"""`sfctl explain` against a real fleet: what it prints, in which form, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from bench.cluster import Cluster
from head.cli.command_line import cli
from tests.harness.models import toy_model_folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(toy_model_folder().path, threads=1) as made:
        yield made


def explain(cluster: Cluster, *options: str) -> Result:
    return CliRunner().invoke(cli, ["--state", str(cluster.state), "explain", *options])


def test_it_says_which_node_is_chosen(cluster: Cluster) -> None:
    result = explain(cluster, cluster.model, "--tokens", "20", "--max-new", "5")
    assert result.exit_code == 0
    header, row = result.stdout.splitlines()
    assert header.split() == ["NODE", "VERDICT", "BUSY", "CACHED", "ESTIMATE", "REASON"]
    assert "chosen" in row
    node = row.split()[0]
    assert result.stderr == (
        f"20 tokens of prompt and 5 of answer would go to {node} (load-aware)\n"
    )


def test_json_is_what_the_head_answers_and_a_refusal_is_3(cluster: Cluster) -> None:
    result = explain(cluster, cluster.model, "--tokens", "1000000", "-o", "json")
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert found["node"] is None
    assert found["error"]["code"] == "context_length_exceeded"
    (node,) = found["nodes"]
    assert "does not hold the prompt's 1000000" in node["reason"]


def test_wrong_use_is_2(cluster: Cluster) -> None:
    assert explain(cluster).exit_code == 2
    assert explain(cluster, "--session", "s", "--tokens", "3").exit_code == 2
    unknown = explain(cluster, "nothing")
    assert unknown.exit_code == 5
    assert "there is no model 'nothing'" in unknown.stderr
