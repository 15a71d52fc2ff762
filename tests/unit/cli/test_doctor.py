"""What `doctor` says of agents that do not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.agent_status import AgentLink, AgentModel, AgentStatus, write_agent_status
from bus.state import StateFolder
from head.cli.context import CliContext
from head.cli.doctor import run_checks

REFUSED = AgentLink(peer="head h1", address="tcp://h:1", code="token_refused", reason="refused it")
LINKED = AgentLink(peer="head h1", address="tcp://h:1", up=True)
FAILED = AgentModel(name="toy", phase="failed", problem="no GPU")


def _rows(state: Path) -> dict[str, tuple[object, object]]:
    rows = run_checks(CliContext(state, None, None))
    return {str(row["check"]): (row["ok"], row["problem"]) for row in rows}


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder.resolve(tmp_path)


def _told(state: StateFolder, link: AgentLink, *models: AgentModel) -> None:
    folder = state.nodes / "node-1"
    folder.mkdir()
    write_agent_status(folder, AgentStatus(1, "h-a", link, models))


def test_links_and_workers_are_not_well_when_nothing_ever_ran(state: StateFolder) -> None:
    nothing = (None, "node-1 does not run, so there is nothing to look at")
    rows = _rows(state.path)
    assert (rows["links"], rows["workers"]) == (nothing, nothing)


def test_what_a_refused_agent_told_last_is_shown(state: StateFolder) -> None:
    _told(state, REFUSED)
    rows = _rows(state.path)
    assert rows["links"] == (False, "node-1 does not run; last: refused it")
    assert rows["workers"][0] is None


def test_what_a_worker_failed_by_is_shown(state: StateFolder) -> None:
    _told(state, LINKED, FAILED)
    rows = _rows(state.path)
    assert rows["links"][0] is None
    assert rows["workers"] == (False, "node-1 does not run; last: toy is failed: no GPU")
