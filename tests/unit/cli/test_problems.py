"""What `status` calls a problem, and the remedies that it names."""

from __future__ import annotations

from typing import Any

from head.cli.nodes import problems


def _node(identity: str, state: str = "up", **more: Any) -> dict[str, Any]:
    model = {"name": "toy", "phase": "ready", "problem": ""}
    return {"identity": identity, "state": state, "reason": "", "models": [model], **more}


def _report(*nodes: dict[str, Any], **model: Any) -> dict[str, Any]:
    toy = {"name": "toy", "ready": True, "nodes": ["n1"], "head_folder": "/m/toy"} | model
    return {"nodes": list(nodes), "models": [toy]}


def test_a_healthy_fleet_has_none() -> None:
    assert problems(_report(_node("n1"))) == []


def test_a_node_that_left_on_purpose_is_none() -> None:
    gone = _node("n2", "left", reason="the agent was stopped")
    gone["models"][0]["problem"] = "it was loading"
    assert problems(_report(_node("n1"), gone)) == []


def test_each_names_its_place() -> None:
    down = _node("n2", "down", reason="silent for 30 s")
    broken = _node("n1")
    broken["models"][0]["problem"] = "model.onnx is missing"
    assert problems(_report(broken, down, ready=False, nodes=[])) == [
        "node n2 is down: silent for 30 s",
        "node n1 can not serve toy: model.onnx is missing",
        "model toy is not ready on any node",
    ]


def test_a_model_that_only_nodes_have_names_the_head() -> None:
    (only,) = problems(_report(_node("n1"), ready=False, head_folder=None))
    assert only.startswith("model toy is not imported on the head")
    assert "sfctl model import toy" in only


def test_without_a_node_the_remedy_is_what_works() -> None:
    for nodes in ((), (_node("n1", "left"),)):
        (first, *_) = problems({"nodes": list(nodes), "models": []}, "x/sfctl --state y {}".format)
        assert "x/sfctl --state y down && x/sfctl --state y up;" in first
        assert first.endswith("on another: sfctl up --agent-only")
