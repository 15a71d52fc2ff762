"""What tests with real processes begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster
from tests.harness.models import toy_model_folder


@pytest.fixture(scope="session")
def toy() -> Path:
    """The toy model's folder."""
    return toy_model_folder().path


@pytest.fixture
def cluster(toy: Path) -> Iterator[Cluster]:
    """A head and a node of its own for a test, with the toy model."""
    with Cluster(toy, threads=1) as made:
        yield made


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A folder for the pipes of a worker process."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path
