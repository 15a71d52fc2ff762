"""When the services of a machine count as ready, and what can not pass by waiting."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bus.agent_status import AgentLink, AgentModel, AgentStatus
from bus.errors import ConfigInvalid, StartError, SuperfluidError, TokenRefused
from bus.state import StateFolder
from head.cli.agents import AgentPlan
from head.cli.readiness import Readiness

HEAD = "tcp://127.0.0.1:8454"
LINK = AgentLink(peer="head h1", address=HEAD, up=True)
TOY = AgentModel(name="toy", phase="ready")


def _status(
    identity: str = "h-a", *, link: AgentLink = LINK, model: AgentModel = TOY
) -> AgentStatus:
    return AgentStatus(1, identity, link, (model,))


def _node(identity: str, phase: str = "ready", state: str = "up") -> dict[str, Any]:
    return {"identity": identity, "state": state, "models": [{"name": "toy", "phase": phase}]}


def _report(*nodes: dict[str, Any], **model: Any) -> dict[str, Any]:
    toy = {"name": "toy", "ready": True, "nodes": ["h-a"], "tokenizer": "own"} | model
    return {"nodes": list(nodes), "models": [toy]}


@pytest.fixture
def wanted(tmp_path: Path) -> Readiness:
    state = StateFolder.resolve(tmp_path)
    state.write_head({"fleet": HEAD})
    plans = tuple(AgentPlan(name, models=("toy",)) for name in ("node-1", "node-2"))
    return Readiness(state, heads=1, agents=plans)


BOTH = {"node-1": _status("h-a"), "node-2": _status("h-b")}


def test_both_agents_with_their_model_are_ready(wanted: Readiness) -> None:
    assert wanted.missing_at_agents(BOTH) == ""
    assert wanted.missing_at_head(_report(_node("h-a"), _node("h-b")), BOTH) == ""


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (None, "node-2 is starting"),
        (_status(link=dataclasses.replace(LINK, up=False)), "node-2: not linked to head h1 yet"),
        (
            _status(link=AgentLink(peer="p", address=HEAD, code="unreachable", reason="no way")),
            "node-2: no way",
        ),
        (_status(model=AgentModel(name="toy", phase="loading")), "node-2: toy is loading"),
        (
            _status(model=AgentModel(name="toy", phase="failed", problem="killed", failures=1)),
            "node-2: toy is failed (killed)",
        ),
    ],
)
def test_what_an_agent_lacks_is_named(
    wanted: Readiness, second: AgentStatus | None, says: str
) -> None:
    told = {"node-1": _status()} | ({"node-2": second} if second else {})
    assert wanted.missing_at_agents(told) == says


def test_a_model_that_was_unusable_before_the_start_is_not_waited_for(wanted: Readiness) -> None:
    damaged = AgentModel(name="bad", phase="failed", code="model_incomplete", failures=9)
    second = dataclasses.replace(_status("h-b"), models=(damaged, TOY))
    assert wanted.missing_at_agents({"node-1": _status(), "node-2": second}) == ""


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (_report(_node("h-a")), "node-2 has not joined yet"),
        (_report(_node("h-a"), _node("h-b", state="down")), "node-2 has not joined yet"),
        (_report(_node("h-a", "loading"), _node("h-b")), "not heard of toy on node-1"),
        (_report(_node("h-a"), _node("h-b"), ready=False), "toy at the head: its tokenizer"),
    ],
)
def test_what_the_head_lacks_is_named(wanted: Readiness, report: dict[str, Any], says: str) -> None:
    assert says in wanted.missing_at_head(report, BOTH)


def test_nodes_of_other_machines_do_not_count(wanted: Readiness) -> None:
    others = _report(_node("far-1"), _node("far-2"))
    assert wanted.missing_at_head(others, BOTH) == "node-1 has not joined yet"


def test_a_tokenizer_that_does_not_come_is_not_waited_for(wanted: Readiness) -> None:
    report = _report(_node("h-a"), _node("h-b"), ready=False, tokenizer="")
    assert wanted.missing_at_head(report, BOTH) == ""
    report = _report(_node("h-a"), _node("h-b"), ready=False, tokenizer="fetching")
    assert "toy at the head: its tokenizer" in wanted.missing_at_head(report, BOTH)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (_status(link=AgentLink(peer="p", address=HEAD, code="token_refused")), TokenRefused),
        (_status(link=AgentLink(peer="p", address=HEAD, code="peer_key_differs")), TokenRefused),
        (_status(link=AgentLink(peer="p", address=HEAD, code="identity_in_use")), StartError),
        (_status(link=AgentLink(peer="p", address=HEAD, code="no_common_version")), StartError),
        (
            _status(model=AgentModel(name="toy", phase="failed", code="start_failed", failures=1)),
            StartError,
        ),
        (
            _status(model=AgentModel(name="toy", phase="loading", code="config_invalid")),
            ConfigInvalid,
        ),
        (_status(model=AgentModel(name="toy", phase="loading", failures=2)), StartError),
    ],
)
def test_what_waiting_does_not_mend_ends_it(
    wanted: Readiness, status: AgentStatus, error: type[SuperfluidError]
) -> None:
    with pytest.raises(SuperfluidError, match=r"^node-2 can not ") as caught:
        wanted.missing_at_agents({"node-2": status})
    assert type(caught.value) is error


def test_another_fleets_head_may_refuse_before_our_own_is_found(wanted: Readiness) -> None:
    elsewhere = AgentLink(peer="p", address="tcp://127.0.0.1:40001", code="token_refused")
    assert wanted.missing_at_agents({"node-1": _status(link=elsewhere)}) != ""
    joins = AgentPlan("node-1", head="tcp://127.0.0.1:40001", models=("toy",))
    with pytest.raises(TokenRefused):
        dataclasses.replace(wanted, agents=(joins,)).missing_at_agents(
            {"node-1": _status(link=elsewhere)}
        )


def test_a_model_imported_after_the_start_is_not_waited_for(wanted: Readiness) -> None:
    plan = AgentPlan("node-1", models=("new", "toy"))
    ready = dataclasses.replace(wanted, agents=(plan,))
    assert ready.missing_at_agents({"node-1": _status()}) == ""


def test_only_agents_alone_may_be_without_a_head(wanted: Readiness) -> None:
    away = AgentLink(peer="the head", address=HEAD, code="unreachable", reason="can not reach it")
    told = {"node-1": _status(), "node-2": _status(link=away)}
    alone = dataclasses.replace(wanted, heads=0)
    assert alone.without_head(told) == f"node-2: can not reach it ({HEAD})"
    assert alone.without_head(BOTH) == ""
    assert wanted.without_head(told) == ""


@pytest.mark.parametrize(
    ("row", "is_ready"),
    [
        ({"name": "whole", "phase": "loading", "stage": {"folder": "toy", "loaded": True}}, True),
        ({"name": "whole", "phase": "loading", "stage": {"folder": "toy", "loaded": False}}, False),
        ({"name": "whole", "phase": "ready", "stage": {"folder": "other", "loaded": True}}, False),
        ({"name": "toy", "phase": "ready", "stage": None}, True),
    ],
)
def test_last_stage_that_is_loaded_is_all_that_its_agent_can_give(
    wanted: Readiness, row: dict[str, Any], is_ready: bool
) -> None:
    """The other stages may be of machines that come later."""
    node = {"identity": "h-a", "state": "up", "models": [row]}
    missing = wanted.missing_at_head(_report(node, _node("h-b")), BOTH)
    assert (missing == "") == is_ready
