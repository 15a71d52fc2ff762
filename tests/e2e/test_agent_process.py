"""The agent as a process, with real workers of the toy model."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from bus.crypto import KeyPair
from bus.keys import new_token
from bus.secret_files import create_secret_file
from tests.harness.logged_process import LIMIT_S, LoggedProcess
from tests.harness.models import toy_model_folder

SMALL = ("--lanes", "2", "--kv-bytes", str(4 << 20), "--threads", "1")


def agent_process(state: Path, *arguments: str, name: str = "node-1") -> LoggedProcess:
    return LoggedProcess("agent", state, "--name", name, *SMALL, *arguments)


def _state(pid: int) -> str:
    """The letter that /proc has for a process; Z when it is gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
    return status.rpartition(")")[2].split()[0]


def _gone(pid: int) -> bool:
    """Whether a process ended (a zombie that nobody reaps yet has ended too)."""
    return _state(pid) == "Z"


def _await(pids: list[int]) -> None:
    until = time.monotonic() + LIMIT_S
    while not all(_gone(pid) for pid in pids):
        assert time.monotonic() < until, f"still there: {pids}"
        time.sleep(0.01)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with a token and the toy model, for an address where no head is."""
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    public = KeyPair.from_secret(bytes(range(32))).public
    create_secret_file(folder / "keys" / "fleet.token", new_token(public))
    (folder / "models").mkdir()
    (folder / "models" / "toy").symlink_to(toy_model_folder().path)
    (folder / "agent.toml").write_text(f'[node]\njoin = ["ipc://{folder}/run/no-head.sock"]\n')
    return folder


def refused(state: Path, *arguments: str, name: str = "node-1") -> tuple[int, str]:
    """Exit status and what was said of an agent that does not start."""
    with agent_process(state, *arguments, name=name) as agent:
        code = agent.wait()
        return code, agent.rest()


def test_a_killed_worker_comes_back_and_serves_again(state: Path) -> None:
    with agent_process(state) as agent:
        first = agent.wait_for("worker_ready", model="toy")
        (worker,) = agent.children()
        os.kill(worker, signal.SIGKILL)
        exited = agent.wait_for("worker_exited", model="toy")
        assert exited["reason"] == "the worker was ended by signal 9 (SIGKILL)"
        second = agent.wait_for("worker_ready", model="toy")
        assert second["worker"] > first["worker"]
        assert agent.children() != [worker]
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 0


def test_sigterm_ends_the_workers_and_leaves_nothing(state: Path) -> None:
    with agent_process(state) as agent:
        agent.wait_for("worker_ready")
        workers = agent.children()
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 0
        _await(workers)
        assert list((state / "run").glob("*.sock")) == []


def test_a_second_sigterm_waits_for_nothing(state: Path) -> None:
    with agent_process(state) as agent:
        agent.wait_for("worker_ready")
        (worker,) = agent.children()
        # A stopped process does not act on SIGTERM, so the agent waits for it.
        os.kill(worker, signal.SIGSTOP)
        # Of two pending signals the lower number acts first, and SIGTERM's is the lower.
        until = time.monotonic() + LIMIT_S
        while _state(worker) != "T":
            assert time.monotonic() < until, "the worker was never stopped"
            time.sleep(0.01)
        agent.signal(signal.SIGTERM)
        agent.wait_for("stopping")
        until = time.monotonic() + LIMIT_S
        while agent.running and time.monotonic() < until:
            agent.signal(signal.SIGTERM)
            time.sleep(0.05)
        assert agent.wait() == 128 + signal.SIGTERM
        _await([worker])


def test_a_killed_agent_leaves_no_worker(state: Path) -> None:
    with agent_process(state) as agent:
        agent.wait_for("worker_ready")
        workers = agent.children()
        assert workers
        agent.signal(signal.SIGKILL)
        assert agent.wait() == -signal.SIGKILL
        _await(workers)
    with agent_process(state) as agent:
        agent.wait_for("worker_ready")


def test_a_broken_model_folder_is_reported_and_served_once_repaired(state: Path) -> None:
    (state / "models" / "toy").unlink()
    broken = state / "models" / "toy"
    broken.mkdir()
    with agent_process(state) as agent:
        exited = agent.wait_for("worker_exited", model="toy")
        assert "superfluid.json is missing" in exited["reason"]
        broken.rmdir()
        broken.symlink_to(toy_model_folder().path)
        agent.wait_for("worker_ready", model="toy")


def test_a_second_agent_of_a_name_is_refused(state: Path) -> None:
    with agent_process(state) as agent:
        agent.wait_for("started")
        code, said = refused(state)
        assert code == 1
        assert f"the agent with process id {agent.pid} has the node folder" in said


def test_two_agents_of_one_state_folder_have_identities_of_their_own(state: Path) -> None:
    with agent_process(state, name="node-1") as one, agent_process(state, name="node-2") as two:
        identities = {agent.wait_for("started")["identity"] for agent in (one, two)}
        assert len(identities) == 2
        one.wait_for("worker_ready")
        two.wait_for("worker_ready")


@pytest.mark.parametrize(
    ("arguments", "toml", "code", "said"),
    [
        (("--model", "nemo"), "", 5, "there is no model 'nemo'"),
        (("--token-file", "/nonexistent/t"), "", 6, "there is no fleet token at /nonexistent/t"),
        ((), "[worker]\nlane = 2\n", 2, "there is no key worker.lane; the nearest is worker.lanes"),
        (("--join", "head:8454"), "", 2, "'head:8454' is no address"),
        (("--listen", "tcp://127.0.0.1:0"), "", 2, "node.join and node.listen are both set"),
        (("--config", "/nonexistent.toml"), "", 2, "there is no configuration file"),
    ],
)
def test_what_can_not_start_says_so_in_one_line(
    state: Path, arguments: tuple[str, ...], toml: str, code: int, said: str
) -> None:
    with (state / "agent.toml").open("a") as file:
        file.write(toml)
    status, text = refused(state, *arguments)
    assert status == code
    (line,) = text.splitlines()
    assert line.startswith("sf-agent: ")
    assert said in line
