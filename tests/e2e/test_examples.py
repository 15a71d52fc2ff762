"""The examples run as they stand, against a real cluster with the toy model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster
from tests.harness.models import toy_model_folder

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(toy_model_folder().path, threads=1) as made:
        yield made


def run(cluster: Cluster, name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", str(EXAMPLES / name), *arguments],
        env=os.environ | {"SUPERFLUID_STATE": str(cluster.state)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["stream.py", "many_at_once.py", "raw_frames.py", "tools.py"])
def test_without_arguments_it_says_how_it_is_used(name: str) -> None:
    command = [sys.executable, "-P", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"usage: python examples/{name} ")
    assert done.stderr.count("\n") == 1


def test_stream(cluster: Cluster) -> None:
    shown = run(cluster, "stream.py", cluster.model, "hello")
    node = cluster.client.nodes()[0]["identity"]
    assert shown.endswith(f"tokens from {node}, length\n") or f"from {node}, stop" in shown


def test_many_at_once(cluster: Cluster) -> None:
    shown = run(cluster, "many_at_once.py", cluster.model, "one", "two", "three")
    assert [word for word in ("one  (", "two  (", "three  (") if word in shown] == [
        *("one  (", "two  (", "three  ("),
    ]


def test_raw_frames(cluster: Cluster) -> None:
    path = str(cluster.state / "run" / "api.sock")
    shown = run(cluster, "raw_frames.py", path, cluster.model, "hello")
    assert "tokens" in shown.splitlines()[-1]


def test_raw_frames_show_the_error(cluster: Cluster) -> None:
    path = str(cluster.state / "run" / "api.sock")
    done = subprocess.run(
        [sys.executable, "-P", str(EXAMPLES / "raw_frames.py"), path, "nope", "hello"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("not_found: ")
