"""A head and its agents as real processes in a state folder of their own, for benches and tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Self

import superfluid
from bus.client import Client
from bus.closing import Closing
from bus.errors import SuperfluidError

START_LIMIT_S = 90.0
STOP_LIMIT_S = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Cluster(Closing):
    """One head and `nodes` agents serving one model folder; ended and removed at exit.

    Args:
        model_folder: its name becomes the model's.
        threads: engine threads of each node's worker.
        lanes: lanes of each worker.
        nodes: agents on this machine.
        settings: further environment of all processes (`SUPERFLUID_<SECTION>_<KEY>`).

    Attributes:
        names: of the agents that are started with it.
    """

    def __init__(
        self,
        model_folder: Path,
        *,
        threads: int,
        lanes: int = 8,
        nodes: int = 1,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.model = model_folder.name
        self.state = Path(tempfile.mkdtemp(prefix="sf-bench-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._clients = ExitStack()
        (self.state / "models").mkdir(mode=0o700)
        (self.state / "models" / self.model).symlink_to(model_folder.resolve())
        self._env = os.environ | {
            "SUPERFLUID_FLEET_BIND": "tcp://127.0.0.1:0",
            "SUPERFLUID_WORKER_THREADS": str(threads),
            "SUPERFLUID_WORKER_LANES": str(lanes),
            "SUPERFLUID_WORKER_DEVICE": "cpu",
            **settings,
        }
        self.names = [f"node-{number}" for number in range(1, nodes + 1)]

    def __enter__(self) -> Self:
        try:
            self.sfctl("token", "new", "--force")
            self.start_head()
            self.client = self.connect()
            self._clients.callback(lambda: self.client.close())
            for name in self.names:
                self.start_node(name)
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End its client and every process, newest first, and remove the state folder."""
        self._clients.close()
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        shutil.rmtree(self.state, ignore_errors=True)

    def sfctl(self, *arguments: str) -> str:
        """Run `sfctl` on this state folder; gives its stdout.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        program = Path(sys.executable).with_name("sfctl")
        done = subprocess.run(
            [program, "--state", str(self.state), *arguments],
            check=True,
            env=self._env,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def pid(self, name: str) -> int:
        """Process id of `head` or `node-N`."""
        return self._processes[name].pid

    def workers(self, name: str) -> list[int]:
        """Process ids of an agent's workers (of the head: its text processes)."""
        return _children(self.pid(name))

    def log(self, name: str) -> str:
        """What a process wrote so far."""
        return (self.state / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str) -> int:
        """SIGTERM, and the exit status that follows."""
        process = self._processes.pop(name)
        process.terminate()
        return process.wait(STOP_LIMIT_S)

    def start_head(self) -> None:
        """Start the head; `connect` waits until it answers."""
        self._start("head", "-m", "head", "--state", str(self.state))

    def start_node(self, name: str) -> None:
        """Start an agent; `wait_ready` waits until it serves."""
        self._start(name, "-m", "agent", "--state", str(self.state), "--name", name)

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds used so far by head, text processes, agents and workers, by role."""
        used = {"head": 0.0, "text": 0.0, "agent": 0.0, "worker": 0.0}
        for name, process in self._processes.items():
            role, below = ("head", "text") if name == "head" else ("agent", "worker")
            used[role] += process_cpu_s(process.pid)
            used[below] += sum(process_cpu_s(child) for child in _children(process.pid))
        return used

    # --- inside -------------------------------------------------------------------------------

    def _start(self, name: str, *arguments: str) -> None:
        log = (self.state / f"{name}.log").open("ab")
        with log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-P", *arguments], env=self._env, stdout=log, stderr=log
            )

    def connect(self) -> Client:
        """A new client, once the head answers."""
        until = time.monotonic() + START_LIMIT_S
        address = f"ipc://{self.state}/run/api.sock"
        while True:
            try:
                client = superfluid.connect(address)
                client.ping()
                return client
            except SuperfluidError:
                self._check_alive(until)
                time.sleep(0.05)

    def wait_ready(self) -> None:
        """Wait until every node that should be there serves the model."""
        until = time.monotonic() + START_LIMIT_S
        while True:
            found = [m for m in self.client.models() if m["name"] == self.model]
            if found and found[0]["ready"] and len(found[0]["nodes"]) == len(self.names):
                return
            self._check_alive(until)
            time.sleep(0.05)

    def _check_alive(self, until: float) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None or time.monotonic() > until:
                text = (self.state / f"{name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{name} did not come up; its log ends with:\n{text}")


def own_cpu_s() -> float:
    """CPU seconds of this process: the client's."""
    return process_cpu_s(os.getpid())


def process_cpu_s(pid: int) -> float:
    """CPU seconds that a process has used; 0 for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text.rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found
