"""`sfctl up` and `down` with real services: the toy model, two agents, supervisord."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.state import StateFolder
from head.cli.processes import descendants, process, services_of, wait_ended
from head.cli.supervision import Supervisor

SFCTL = Path(sys.executable).parent / "sfctl"
READY_S = 120


class Machine:
    """One state folder and `sfctl` for it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.env = {**os.environ, "SUPERFLUID_FLEET_BIND": "tcp://127.0.0.1:0"}

    def sfctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SFCTL, "--state", self.state, "--timeout", str(READY_S), *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * READY_S,
            check=False,
        )

    def ok(self, *arguments: str) -> str:
        done = self.sfctl(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def fails(self, code: int, *arguments: str) -> str:
        """The one line of a failed command."""
        done = self.sfctl(*arguments)
        assert done.returncode == code, done.stderr
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, done.stderr
        assert services_of(self.state) == []
        return errors[0]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "state")
    toy = [sys.executable, "-P", "-m", "agent.models", "toy", "--into", str(made.state / "models")]
    subprocess.run(toy, check=True, stdout=subprocess.DEVNULL)
    made.ok("token", "new")
    yield made
    made.sfctl("down")
    assert services_of(made.state) == []


def test_up_serves_and_down_leaves_nothing(machine: Machine) -> None:
    machine.ok("up", "--nodes", "2")
    status = json.loads(machine.ok("status", "-o", "json"))
    assert [node["state"] for node in status["nodes"]] == ["up", "up"]
    assert len({node["identity"] for node in status["nodes"]}) == 2
    asked = ("run", "--raw", "toy", "hello", "--max-new", "8", "--temperature", "0", "-o", "json")
    answer = json.loads(machine.ok(*asked))
    assert len(answer["tokens"]) == answer["usage"]["completion"] <= 8
    assert answer["node"] in {node["identity"] for node in status["nodes"]}
    assert "already running" in machine.sfctl("up", "--nodes", "2").stderr
    other = machine.sfctl("up", "--nodes", "3")
    assert other.returncode == 1
    assert "sfctl down" in other.stderr
    assert machine.ok("logs", "node-1", "-n", "3").count("\n") <= 3
    supervisor = Supervisor(StateFolder.resolve(machine.state))
    everything = [*descendants(supervisor.pid()), process(supervisor.pid())]
    machine.ok("down")
    assert [each for each in everything if each is not None and each.alive] == []
    assert "nothing was running" in machine.sfctl("down").stderr


def test_down_ends_what_a_killed_supervisord_left(machine: Machine) -> None:
    machine.ok("up")
    keeper = process(Supervisor(StateFolder.resolve(machine.state)).pid())
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGKILL)
    assert wait_ended([keeper], 10) == []
    assert services_of(machine.state) != []
    refused = machine.sfctl("up")
    assert refused.returncode == 1
    assert "sfctl" in refused.stderr
    machine.ok("down")
    assert services_of(machine.state) == []


def test_an_interrupted_up_leaves_nothing(machine: Machine) -> None:
    started = subprocess.Popen(
        [SFCTL, "--state", machine.state, "up", "--nodes", "2"],
        env=machine.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    supervisor = Supervisor(StateFolder.resolve(machine.state))
    deadline = time.monotonic() + READY_S
    while not supervisor.running():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=READY_S)
    assert (started.returncode, said.splitlines()[-1]) == (130, "error: interrupted")
    assert services_of(machine.state) == []


def test_a_wrong_key_of_the_agent_is_2_and_leaves_nothing(machine: Machine) -> None:
    (machine.state / "agent.toml").write_text("[worker]\nlane = 3\n")
    assert "worker.lanes" in machine.fails(2, "up")


def test_a_wrong_key_of_the_head_is_2(machine: Machine) -> None:
    (machine.state / "head.toml").write_text("[queue]\nlimits = 3\n")
    assert "queue.limit" in machine.fails(2, "up")


def test_a_missing_token_is_6(machine: Machine) -> None:
    (machine.state / "keys" / "fleet.token").unlink()
    assert "token new" in machine.fails(6, "up")


def test_a_model_that_lacks_a_file_is_1_and_named(machine: Machine) -> None:
    (machine.state / "models" / "toy" / "tokenizer.json").unlink()
    line = machine.fails(1, "up")
    assert "tokenizer.json" in line
    assert "sfctl model import" in line


def test_no_model_is_1(machine: Machine) -> None:
    (machine.state / "models" / "toy").rename(machine.state / "toy")
    assert "model import" in machine.fails(1, "up")


def test_a_port_in_use_is_1(machine: Machine) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        machine.env["SUPERFLUID_FLEET_BIND"] = f"tcp://127.0.0.1:{holder.getsockname()[1]}"
        assert "SUPERFLUID_FLEET_BIND" in machine.fails(1, "up")


def test_a_percent_in_the_path_is_2(machine: Machine) -> None:
    machine.state = machine.state.rename(machine.state.with_name("50%"))
    assert "%" in machine.fails(2, "up")
