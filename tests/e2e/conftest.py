"""What tests with real processes begin with."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A folder for the pipes of a worker process."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path
