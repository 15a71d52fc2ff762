"""When a fleet counts as ready, and what `status` calls a problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bus.state import StateFolder
from head.cli.nodes import problems
from head.cli.readiness import Readiness


def _node(identity: str, phase: str = "ready", state: str = "up") -> dict[str, Any]:
    model = {"name": "toy", "phase": phase, "problem": ""}
    return {"identity": identity, "state": state, "reason": "", "models": [model]}


def _report(*nodes: dict[str, Any], ready: bool = True) -> dict[str, Any]:
    return {"nodes": list(nodes), "models": [{"name": "toy", "ready": ready}]}


@pytest.fixture
def wanted(tmp_path: Path) -> Readiness:
    state = StateFolder.resolve(tmp_path)
    return Readiness(state, heads=1, nodes=2, models=("toy",))


def test_both_nodes_with_their_model_are_ready(wanted: Readiness) -> None:
    assert wanted.missing(_report(_node("h-a"), _node("h-b"))) == ""


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (_report(), "0 of 2 nodes have joined"),
        (_report(_node("h-a"), _node("h-b", state="down")), "1 of 2 nodes have joined"),
        (_report(_node("h-a"), _node("h-b", "loading")), "toy on h-b: loading"),
        (_report(_node("h-a"), _node("h-b"), ready=False), "toy at the head"),
    ],
)
def test_what_is_missing_is_named(wanted: Readiness, report: dict[str, Any], says: str) -> None:
    assert says in wanted.missing(report)


def test_a_healthy_fleet_has_no_problem() -> None:
    assert problems(_report(_node("n1"))) == []


def test_each_problem_names_its_place() -> None:
    down = _node("n2", state="down") | {"reason": "silent for 30 s"}
    broken = _node("n1")
    broken["models"][0]["problem"] = "model.onnx is missing"
    found = problems(_report(broken, down, ready=False))
    assert found == [
        "node n2 is down: silent for 30 s",
        "node n1 can not serve toy: model.onnx is missing",
        "model toy is not ready on any node",
    ]
    assert "sfctl up" in problems({"nodes": [], "models": []})[0]
