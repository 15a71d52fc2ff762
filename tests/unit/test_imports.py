"""Import rules that import-linter can not hold, since `superfluid` is a module of its own."""

from __future__ import annotations

import ast
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
