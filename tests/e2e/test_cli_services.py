"""`sfctl up` and `down` with real services: the toy model, two agents, supervisord."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.state import StateFolder
from head.cli.processes import descendants, process, services_of, wait_ended
from head.cli.supervision import Supervisor
from tests.harness.models import toy_model_folder

SFCTL = Path(sys.executable).parent / "sfctl"
READY_S = 120
JOIN = '[node]\njoin = ["tcp://127.0.0.1:1"]\n'


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

    def join(self, other: Machine) -> None:
        """Let agents here join another machine's head, which runs."""
        head = StateFolder.find(other.state).read_head()
        assert head is not None
        (self.state / "agent.toml").write_text(f'[node]\njoin = ["{head["fleet"]}"]\n')

    def take_token(self, other: Machine) -> None:
        shutil.copy2(other.state / "keys" / "fleet.token", self.state / "keys")


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    """Makes machines with the toy model and no token."""
    made: list[Machine] = []

    def make(name: str) -> Machine:
        machine = Machine(tmp_path / name)
        StateFolder.resolve(machine.state)
        (machine.state / "models" / "toy").symlink_to(toy_model_folder().path)
        made.append(machine)
        return machine

    yield make
    for machine in made:
        machine.sfctl("down")
        assert services_of(machine.state) == []


@pytest.fixture
def machine(bare: Callable[[str], Machine]) -> Machine:
    made = bare("state")
    made.ok("token", "new")
    return made


@pytest.fixture
def second(bare: Callable[[str], Machine]) -> Machine:
    return bare("second")


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
    assert "already running: 1 head and 2 node agents" in machine.sfctl("up").stderr
    for other in (("--nodes", "3"), ("--agent-only",), ("--nodes", "2", "--device", "cpu")):
        refused = machine.sfctl("up", *other)
        assert refused.returncode == 1
        assert f"{SFCTL} --state {machine.state} down && " in refused.stderr
    assert {"node-1", "node-2"} <= set(machine.ok("status").split())
    assert machine.ok("doctor").count(" yes ") == len(machine.ok("doctor").splitlines()) - 1
    assert machine.ok("logs", "node-1", "-n", "3").count("\n") <= 3
    supervisor = Supervisor(StateFolder.resolve(machine.state))
    everything = [*descendants(supervisor.pid()), process(supervisor.pid())]
    machine.ok("down")
    assert [each for each in everything if each is not None and each.alive] == []
    assert "nothing was running" in machine.sfctl("down").stderr


def test_down_and_up_bring_the_same_nodes_back(machine: Machine) -> None:
    machine.ok("up", "--nodes", "2")
    machine.ok("down")
    machine.ok("up")
    assert len(json.loads(machine.ok("status", "-o", "json"))["nodes"]) == 2


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


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        (signal.SIGINT, 130, "error: interrupted"),
        (signal.SIGTERM, 143, "error: ended by SIGTERM"),
        (signal.SIGHUP, 129, "error: ended by SIGHUP"),
    ],
)
def test_l13_an_interrupted_up_leaves_nothing(
    machine: Machine, number: signal.Signals, code: int, says: str
) -> None:
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
    started.send_signal(number)
    _, said = started.communicate(timeout=READY_S)
    assert (started.returncode, said.splitlines()[-1]) == (code, says)
    assert services_of(machine.state) == []


@pytest.mark.parametrize(
    ("toml", "code", "says"),
    [
        ("[worker]\nlane = 3\n", 2, "worker.lanes"),
        ('[node]\njion = ["tcp://127.0.0.1:1"]\n', 2, "node.join"),
        ('[node]\njoin = "tcp://127.0.0.1:1"\n', 2, "a list of texts"),
        ('[node]\njoin = ["127.0.0.1:8454"]\n', 2, "as in tcp://127.0.0.1:8454"),
        ("[node\n", 2, "no TOML"),
        ('[worker]\ndevice = "gpu"\n', 2, "auto, cpu, cuda"),
        (f'{JOIN}[models]\nnames = ["llama9"]\n', 5, "llama9"),
        (f'{JOIN}token_file = "/nonexistent"\n', 6, "/nonexistent"),
    ],
)
def test_a_wrong_agent_toml_starts_nothing(
    machine: Machine, toml: str, code: int, says: str
) -> None:
    (machine.state / "agent.toml").write_text(toml)
    assert says in machine.fails(code, "up", "--agent-only")
    doctor = machine.sfctl("doctor")
    assert doctor.returncode == 3
    assert says in doctor.stdout
    assert list((machine.state / "log").iterdir()) == []


def test_nor_does_one_beside_a_head(machine: Machine) -> None:
    (machine.state / "agent.toml").write_text("[worker]\nlane = 3\n")
    assert "worker.lanes" in machine.fails(2, "up")


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a GPU")
@pytest.mark.parametrize("way", ["file", "option"])
def test_a_gpu_that_is_not_there_is_1_at_once(machine: Machine, way: str) -> None:
    if way == "file":
        (machine.state / "agent.toml").write_text('[worker]\ndevice = "cuda"\n')
    begin = time.monotonic()
    if way == "option":
        (machine.state / "agent.toml").write_text('[worker]\ndevice = "auto"\n')
    line = machine.fails(1, "up", *(("--device", "cuda") if way == "option" else ()))
    assert time.monotonic() - begin < READY_S / 2
    assert line.startswith("error: node-1 can not serve toy: device cuda can not be used")
    remedy = f"start with: {SFCTL} --state {machine.state} up --nodes 1 --device cpu"
    assert (remedy in line, "agent.toml" in line) == (way == "option", way == "file")


def test_a_head_that_takes_no_joins_is_2_at_once(machine: Machine) -> None:
    machine.env["SUPERFLUID_FLEET_BIND"] = ""
    assert "bind in [fleet]" in machine.fails(2, "up")


def test_agents_stay_when_their_head_is_not_there(machine: Machine) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        (machine.state / "agent.toml").write_text(f'[node]\njoin = ["{address}"]\n')
        for _ in ("at its start", "while it runs"):
            done = machine.sfctl("--timeout", "7", "up", "--agent-only")
            assert done.returncode == 8
            *told, line = done.stderr.splitlines()
            assert line.startswith("error: node-1: can not reach ")
            assert address in line
            for command in ("status", "down"):
                assert f"with: {SFCTL} --state {machine.state} {command}" in line
            assert any(each.startswith("waiting: ") and address in each for each in told)
            assert services_of(machine.state) != []


def test_a_start_that_takes_too_long_leaves_nothing(machine: Machine) -> None:
    # 8 would say that agents run on.
    done = machine.sfctl("--timeout", "0.1", "up")
    assert done.returncode == 1
    assert "not ready after 0.1 s" in done.stderr
    assert "what had started was ended again" in done.stderr
    assert services_of(machine.state) == []


def test_a_head_that_supervisord_starts_again_is_told_of(machine: Machine) -> None:
    machine.ok("up", "--head-only")
    file, later = machine.state / "head.toml", time.time() + 2
    file.write_text("[fleet]\nsilence_s = 20.0\n")
    os.utime(file, (later, later))
    for command in (("doctor",), ("up", "--head-only")):
        done = machine.sfctl(*command)
        assert f"{file} changed since the start; apply it with: " in done.stdout + done.stderr
    file.write_text("[fleet]\nsilence = 20.0\n")
    keeper = Supervisor(StateFolder.resolve(machine.state))
    (head,) = keeper.processes()
    os.kill(head.pid, signal.SIGKILL)

    def told() -> bool:
        done = machine.sfctl("status")
        return done.returncode == 4 and f"{SFCTL} --state {machine.state} logs head" in done.stderr

    _until(told)


def test_another_heads_token_is_6_at_once(machine: Machine, second: Machine) -> None:
    machine.ok("up", "--head-only")
    second.ok("token", "new")
    second.join(machine)
    begin = time.monotonic()
    line = second.fails(6, "up", "--agent-only")
    assert time.monotonic() - begin < READY_S / 2
    (links,) = [each for each in second.sfctl("doctor").stdout.splitlines() if "links " in each]
    assert "no  " in links
    assert "last: " in links
    assert "copy the head's token file" in links
    assert line.startswith("error: node-1 can not join: ")
    assert "copy the head's token file" in line


def test_a_machine_of_agents_knows_how_they_are(machine: Machine, second: Machine) -> None:
    machine.ok("up", "--head-only")
    second.join(machine)
    missing = second.fails(6, "up", "--agent-only")
    assert "copy the head's token file" in missing
    assert "copy the head's token file" in second.sfctl("doctor").stdout
    second.take_token(machine)
    second.ok("up", "--agent-only")
    assert "already running: no head and 1 node agent" in second.sfctl("up", "--agent-only").stderr
    refused = second.sfctl("up")
    assert refused.returncode == 1
    assert "no head and 1 node agent run here already and 1 head and 1 node" in refused.stderr
    assert refused.stderr.endswith(f" && {SFCTL} --state {second.state} up --nodes 1\n")
    (agent,) = json.loads(second.ok("status", "-o", "json"))["agents"]
    assert (agent["name"], agent["linked"], agent["models"]) == ("node-1", True, ["toy (ready)"])
    (node,) = json.loads(machine.ok("node", "ls", "-o", "json"))
    assert (node["identity"], node["state"]) == (agent["identity"], "up")
    second.ok("doctor")
    assert second.ok("logs", "-n", "1") == second.ok("logs", agent["identity"], "-n", "1")
    machine.ok("down")
    _until(lambda: second.sfctl("status").returncode == 3)
    sick = second.sfctl("doctor")
    assert sick.returncode == 3
    (links,) = [line for line in sick.stdout.splitlines() if line.startswith("links ")]
    assert " no " in links
    assert "node-1: " in links
    waiting = second.sfctl("--timeout", "1", "up", "--agent-only")
    assert waiting.returncode == 8
    assert services_of(second.state) != []


def test_agents_stay_while_they_wait_for_approval(machine: Machine, second: Machine) -> None:
    (machine.state / "head.toml").write_text('[fleet]\nenrolment = "approve"\n')
    machine.ok("up")
    second.join(machine)
    second.take_token(machine)
    waits = second.sfctl("--timeout", "10", "up", "--agent-only")
    assert waits.returncode == 8
    assert "waits for approval" in waits.stderr
    assert "approve it on the head with: sfctl node approve" in waits.stderr
    assert machine.sfctl("status").returncode == 3
    assert machine.ok("node", "approve", "--all").count("enrolled") == 1
    second.ok("up", "--agent-only")
    states = [node["state"] for node in json.loads(machine.ok("node", "ls", "-o", "json"))]
    assert states == ["up", "up"]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline


def test_the_remedy_for_no_node_works_as_it_stands(machine: Machine) -> None:
    machine.ok("up", "--head-only")
    assert "already running: 1 head and 0 node agents" in machine.sfctl("up", "--head-only").stderr
    refused = machine.sfctl("up")
    assert refused.returncode == 1
    assert "1 head and 0 node agents run here already and 1 head and 1 node" in refused.stderr
    assert refused.stderr.endswith(f" && {SFCTL} --state {machine.state} up --nodes 1\n")
    status = machine.sfctl("status")
    assert status.returncode == 3
    (problem,) = [line for line in status.stderr.splitlines() if "no node is here" in line]
    command = problem.split("machine: ", 1)[1].split(";", 1)[0]
    subprocess.run(["sh", "-c", command], env=machine.env, check=True, timeout=2 * READY_S)
    assert json.loads(machine.ok("status", "-o", "json"))["problems"] == []


def test_a_model_that_only_a_node_has_is_no_problem_of_the_head(machine: Machine) -> None:
    folder = machine.state.parent / "models"
    folder.mkdir()
    shutil.copytree(machine.state / "models" / "toy", folder / "tiny")
    (machine.state / "agent.toml").write_text(f'[models]\nfolder = "{folder}"\n')
    machine.ok("up")
    status = machine.sfctl("status")
    assert status.returncode == 3
    # The head's own model has no node that serves it; the other needs no copy here.
    assert "no node serves model toy" in status.stderr
    assert "tiny" not in status.stderr


def test_down_leaves_no_stand_in_of_a_long_path(machine: Machine) -> None:
    machine.state = machine.state.rename(machine.state.with_name("s" * 90))
    run = StateFolder.resolve(machine.state).run
    assert run.parent != machine.state
    machine.ok("up", "--head-only")
    machine.ok("down")
    assert not run.exists()
    machine.sfctl("status")
    assert not run.exists()


def test_a_wrong_key_of_the_head_is_2(machine: Machine) -> None:
    (machine.state / "head.toml").write_text("[queue]\nlimits = 3\n")
    assert "queue.limit" in machine.fails(2, "up")


def test_a_missing_token_is_6(machine: Machine) -> None:
    (machine.state / "keys" / "fleet.token").unlink()
    assert "token new" in machine.fails(6, "up")


def test_a_model_that_lacks_a_file_is_1_and_named(machine: Machine) -> None:
    toy = machine.state / "models" / "toy"
    whole = toy.resolve()
    toy.unlink()
    shutil.copytree(whole, toy)
    (toy / "tokenizer.json").unlink()
    line = machine.fails(1, "up")
    assert "tokenizer.json" in line
    assert f"`{SFCTL} --state {machine.state} model import FILE.gguf --name toy`" in line


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


def test_a_head_without_a_model_serves_what_its_nodes_have(
    machine: Machine, second: Machine
) -> None:
    (machine.state / "models" / "toy").unlink()
    machine.ok("up", "--head-only")
    assert "model import" not in machine.sfctl("doctor").stdout
    second.join(machine)
    second.take_token(machine)
    second.ok("up", "--agent-only")
    asked = ("run", "toy", "hello", "--max-new", "8", "--temperature", "0", "-o", "json")
    answer = json.loads(machine.ok(*asked))
    assert len(answer["tokens"]) == answer["usage"]["completion"] <= 8
