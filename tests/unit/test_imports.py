"""Import rules that import-linter can not hold, since `superfluid` is a module of its own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imported_packages(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def test_the_door_for_scripts_imports_bus_alone() -> None:
    ours = imported_packages(ROOT / "superfluid.py") & {"bus", "head", "agent", "zmq", "nacl"}
    assert ours == {"bus"}


def test_onnxruntime_is_imported_in_one_place_which_ends_its_telemetry() -> None:
    folders = ("agent", "bench", "bus", "examples", "head", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    importers = [file for file in files if "onnxruntime" in imported_packages(file)]
    assert importers == [ROOT / "agent" / "models" / "onnx_runtime.py"]


def test_a_worker_leaves_nothing_in_the_home_folder(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORT_")}
    environment |= {"HOME": str(tmp_path)}
    environment.pop("XDG_CACHE_HOME", None)
    program = "import agent.worker.__main__, agent.worker.model_runner, agent.models.selftest"
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []
