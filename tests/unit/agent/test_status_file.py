"""The agent's status file: what it tells, and what it must not mix up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.core import AgentCore
from agent.status_file import StatusFile
from bus.agent_status import AgentLink, AgentModel, read_agent_status
from bus.ids import ModelName, NodeIdentity, WorkerIncarnation
from bus.link import LinkDown, PeerRefused
from bus.log import EventLog
from bus.messages.worker import Failed

TOY = ModelName("toy")
W1 = WorkerIncarnation(1 << 32 | 1)
HERE, THERE = "tcp://127.0.0.1:8454", "tcp://127.0.0.1:40001"


class Agent:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.core = AgentCore(NodeIdentity("n1"), 7, [TOY])
        self.file = StatusFile(folder, self.core, EventLog("test"))

    def link(self, address: str = HERE) -> AgentLink:
        self.file.write(f"the head at {address}", address, 0.0)
        found = read_agent_status(self.folder)
        assert found is not None
        assert (found.pid, found.identity) == (os.getpid(), "n1")
        return found.link

    def model(self) -> AgentModel:
        self.link()
        found = read_agent_status(self.folder)
        assert found is not None
        return found.models[0]


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_a_refusal_is_told_with_its_code(agent: Agent) -> None:
    assert agent.link() == AgentLink(peer=f"the head at {HERE}", address=HERE)
    agent.file.note_link(PeerRefused("token_refused", "tokens differ"), "the head", HERE)
    link = agent.link()
    assert (link.up, link.code, link.reason) == (False, "token_refused", "tokens differ")


def test_what_another_address_said_is_forgotten(agent: Agent) -> None:
    """An agent may knock at another fleet's head before its own has said where it is."""
    agent.file.note_link(PeerRefused("token_refused", "tokens differ"), "the head", HERE)
    assert agent.link(THERE) == AgentLink(peer=f"the head at {THERE}", address=THERE)


def test_a_lost_link_is_told(agent: Agent) -> None:
    agent.link()
    agent.file.note_link(LinkDown("silent", "silent for 30 s"), "the head", HERE)
    assert (agent.link().up, agent.link().code) == (False, "silent")


def test_a_worker_that_named_its_error_is_told_from_one_that_just_ended(agent: Agent) -> None:
    agent.core.worker_started(TOY, W1, 0.0)
    assert agent.model() == AgentModel(name="toy", phase="loading")
    agent.core.worker_exited(TOY, W1, -9, 1.0, 0.0)
    killed = agent.model()
    assert (killed.phase, killed.code, killed.failures) == ("loading", "", 1)
    assert "SIGKILL" in killed.problem
    agent.core.worker_started(TOY, W1, 0.0)
    said = Failed(code="start_failed", message="no NVIDIA driver")
    agent.core.worker_message(TOY, W1, said, 0.0)
    agent.core.worker_exited(TOY, W1, 1, 2.0, 0.0)
    failed = agent.model()
    assert (failed.code, failed.problem) == ("start_failed", "no NVIDIA driver")
    assert (failed.phase, failed.failures) == ("failed", 2)


def test_a_worker_that_dies_again_and_again_has_failed(agent: Agent) -> None:
    phases = []
    for _ in range(3):
        agent.core.worker_started(TOY, W1, 0.0)
        agent.core.worker_exited(TOY, W1, -9, 1.0, 0.0)
        phases.append(agent.model().phase)
    assert phases == ["loading", "loading", "failed"]


def test_it_is_written_only_when_something_changed(agent: Agent) -> None:
    agent.link()
    (agent.folder / "status.json").unlink()
    agent.file.write(f"the head at {HERE}", HERE, 1.0)
    assert read_agent_status(agent.folder) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "identity": "a"}'])
def test_a_damaged_file_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    assert read_agent_status(tmp_path) is None


def test_a_folder_that_can_not_be_written_does_not_end_the_agent(tmp_path: Path) -> None:
    Agent(tmp_path / "gone").file.write("the head", HERE, 0.0)
