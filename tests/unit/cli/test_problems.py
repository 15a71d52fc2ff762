"""What `status` calls a problem, and the remedies that it names."""

from __future__ import annotations

from typing import Any

import pytest

from head.cli.nodes import node_row, problems, with_keys
from head.cli.store import store_line


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
        "node n2 is down: silent for 30 s; it comes back once its agent runs and reaches the head, "
        "or if it is gone for good: sfctl node forget n2",
        "node n1 can not serve toy: model.onnx is missing",
        "model toy is not ready on any node",
    ]


def test_a_folder_of_the_head_that_is_not_used_is_told() -> None:
    (only,) = problems(_report(_node("n1"), tokenizer="fetched"))
    assert only.startswith("the head's own folder of toy has another tokenizer than its nodes")
    assert "remove it: sfctl model rm toy" in only


def test_a_tokenizer_that_the_head_lacks_is_told() -> None:
    none = {"ready": False, "head_folder": None}
    (only,) = problems(_report(_node("n1"), **none, tokenizer_problem="n1: refused; update it"))
    assert only == "model toy is not ready on the head: n1: refused; update it"
    (only,) = problems(_report(_node("n1"), **none, tokenizer="fetching", tokenizer_problem=""))
    assert only == ("model toy is ready in a moment: the head fetches its tokenizer from a node")


def test_without_a_node_the_remedy_is_what_works() -> None:
    for nodes in ((), (_node("n1", "left"),)):
        (first, *_) = problems({"nodes": list(nodes), "models": []}, "x/sfctl --state y {}".format)
        assert "x/sfctl --state y down && x/sfctl --state y up;" in first
        assert first.endswith("on another: sfctl up --agent-only")


KEYS = [
    {"identity": "new", "state": "pending", "key": "k1", "host": "10.0.0.7", "changed_wall_s": 1.0},
    {"identity": "n1", "state": "enrolled", "key": "k2", "host": "", "changed_wall_s": 1.0},
    {"identity": "off", "state": "enrolled", "key": "k3", "host": "", "changed_wall_s": 1.0},
    {"identity": "out", "state": "revoked", "key": "k4", "host": "", "changed_wall_s": 1.0},
    {"identity": "old", "state": "revoked", "key": "k5", "host": "", "changed_wall_s": 1.0},
]


def test_a_node_that_waits_for_approval_is_one() -> None:
    report = {**_report(_node("n1")), "enrolment": {"keys": KEYS}}
    (waits,) = problems(report)
    assert waits.startswith("node new (10.0.0.7, key k1) waits for approval;")
    assert waits.endswith("sfctl node approve new")


def test_a_node_that_did_not_come_back_after_a_start_of_the_head_is_one() -> None:
    report = {**_report(_node("n1")), "enrolment": {"keys": KEYS[1:]}, "head": {"uptime_s": 59.0}}
    assert problems(report) == []
    report["head"] = {"uptime_s": 61.0}
    (gone,) = problems(report)
    assert gone.startswith("node off (host unknown) has not linked since the head was started;")
    assert gone.endswith("sfctl node forget off")


def test_the_list_shows_who_waits_who_never_came_and_who_was_revoked() -> None:
    report = {"nodes": [_node("n1"), _node("out", "left")], "enrolment": {"keys": KEYS}}
    shown = {node["identity"]: (node["state"], node["reason"]) for node in with_keys(report, 100.0)}
    assert shown == {
        "n1": ("up", ""),
        "out": ("revoked", "key k4 is revoked"),
        "new": ("pending", "waits for approval; host 10.0.0.7, key k1"),
        "off": ("enrolled", "has not linked since the head was started"),
        "old": ("revoked", "key k5 is revoked"),
    }


def test_a_node_that_came_back_with_a_new_key_is_up() -> None:
    report = {"nodes": [_node("out")], "enrolment": {"keys": KEYS[3:4]}}
    assert [node["state"] for node in with_keys(report, 100.0)] == ["up"]


def test_who_was_approved_just_now_comes_by_itself() -> None:
    keys = [KEYS[2] | {"changed_wall_s": 90.0}]
    report = {"nodes": [], "enrolment": {"keys": keys}}
    (soon,) = with_keys(report, 100.0)
    assert soon["reason"] == "approved; it links by itself within 10 s"
    (late,) = with_keys(report, 106.0)
    assert late["reason"] == "has not linked since the head was started"


LIVE = {"name": "toy", "phase": "ready", "lanes_used": 1, "lanes_total": 4, "decode_rate": 12.5}


@pytest.mark.parametrize("state", ["up", "draining"])
def test_a_live_nodes_figures_are_shown(state: str) -> None:
    row = node_row(_node("n1", state, models=[LIVE], generations=1), {})
    shown = (row["models"], row["lanes"], row["tokens/s"], row["generations"])
    assert shown == (["toy (ready)"], "1/4", 12.5, 1)


@pytest.mark.parametrize("state", ["down", "left", "revoked"])
def test_figures_of_a_node_that_is_gone_are_not_shown(state: str) -> None:
    row = node_row(_node("n1", state, models=[LIVE], generations=1), {})
    assert row["models"] == ["toy"]
    assert [row.get(name) for name in ("lanes", "tokens/s", "generations")] == [None, None, None]


def test_a_model_that_was_unloaded_everywhere_can_be_loaded_again() -> None:
    model = {"name": "toy", "ready": False, "nodes": [], "on": [], "head_folder": "/m/toy"}
    assert problems({"nodes": [{"identity": "n1", "state": "up"}], "models": [model]}) == [
        "no node serves model toy; have one that has it do so: sfctl model load toy NODE"
    ]
    loading = model | {"on": [{"node": "n1", "phase": "loading", "problem": ""}]}
    assert problems({"nodes": [{"identity": "n1", "state": "up"}], "models": [loading]}) == [
        "model toy is not ready on any node"
    ]


# --- nodes that are dialed, drained or labelled ---------------------------------------------------


def test_an_address_that_nobody_answered_at_is_listed_with_why() -> None:
    dialed = [
        {"address": "tcp://a:8454", "node": "", "state": "down", "reason": "can not reach it"},
        {"address": "tcp://b:8454", "node": "n1", "state": "up", "reason": ""},
    ]
    report = {**_report(_node("n1")), "dialed": dialed}
    listed = {node["identity"]: node["state"] for node in with_keys(report, 0.0)}
    assert listed == {"n1": "up", "tcp://a:8454": "down"}
    (problem,) = problems(report)
    assert "tcp://a:8454" in problem
    assert "can not reach it" in problem


def test_a_drained_node_is_no_problem_beside_one_that_has_work() -> None:
    assert problems(_report(_node("n1"), _node("n2", "drained"))) == []


def test_nobody_is_served_when_every_node_is_drained() -> None:
    (problem,) = problems(_report(_node("n1", "drained"), _node("n2", "draining")))
    assert "sfctl node undrain" in problem


def test_a_drained_node_that_is_down_says_so_in_its_line() -> None:
    row = node_row(_node("n1", "down", reason="off", draining=True, labels={"rack": "3"}), {})
    assert row["problem"] == "off; drained by an operator"
    assert row["labels"] == "rack=3"


def test_status_tells_the_age_of_the_last_backup() -> None:
    store = {
        "folder": "/s",
        "file_bytes": 1 << 20,
        "log_bytes": 0,
        "free_bytes": 5 << 30,
        "check": "sound",
        "backup_wall_s": 1000.0,
    }
    told = store_line({"store": store}, 1000.0 + 7200.0)
    assert told.endswith("check sound, 5120 MiB free on disk, last backup 2 h ago")
    store["backup_wall_s"] = 0.0
    assert "backup" not in store_line({"store": store}, 1000.0)
