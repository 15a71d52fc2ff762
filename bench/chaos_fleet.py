"""A fleet as people run it, for `make chaos`: `sfctl up`, supervisord, a head and two agents.

Its state folder is its own and temporary. One agent joins the head, the other is called by it, both
over proxies, so that links can be cut.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from bus.client import Client
from bus.client_address import api_address
from bus.closing import Closing
from bus.state import StateFolder
from head.cli.processes import end, services_of
from tests.harness.fault_proxy import FaultProxy

#: By dial direction, the agent whose link is made that way.
JOINED, DIALED = "node-1", "node-2"
NODES = 2
START_LIMIT_S = 120.0
#: Below the ports that systems give to connections that dial out.
_PORTS = range(15_000, 30_000)
_LOCAL = "127.0.0.1"


class ChaosFleet(Closing):
    """A head and two agents serving one model folder, under supervisord; removed at exit.

    Args:
        model_folder: its name becomes the model's.
        lanes: of each of the two workers.
        proxied: whether links go over proxies; else both agents join the head themselves.
    """

    def __init__(self, model_folder: Path, *, lanes: int, proxied: bool = True) -> None:
        self.model = model_folder.name
        self.path = Path(tempfile.mkdtemp(prefix="sf-chaos-"))
        self.state = StateFolder.resolve(self.path)
        self._stack = ExitStack()
        self._proxies: dict[str, FaultProxy] = {}
        (self.state.models / self.model).symlink_to(model_folder.resolve())
        head, dialed = free_ports(2)
        self._env = os.environ | {
            "SUPERFLUID_FLEET_BIND": head,
            "SUPERFLUID_WORKER_THREADS": "1",
            "SUPERFLUID_WORKER_LANES": str(lanes),
            "SUPERFLUID_WORKER_DEVICE": "cpu",
            "SUPERFLUID_TEXT_PROCESSES": "1",
        }
        if proxied:
            self._proxies = {JOINED: FaultProxy(head), DIALED: FaultProxy(dialed)}
            self._env["SUPERFLUID_FLEET_NODES"] = self._proxies[DIALED].address
            self._configure(JOINED, f'join = ["{self._proxies[JOINED].address}"]')
            self._configure(DIALED, f'listen = "{dialed}"')

    def __enter__(self) -> Self:
        for proxy in self._proxies.values():
            self._stack.enter_context(proxy)
        try:
            self.sfctl("token", "new", "--force")
            self.sfctl("up", "--nodes", str(NODES))
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End everything and remove the folder."""
        try:
            self.sfctl("down")
        finally:
            end(services_of(self.path), grace_s=5.0)
            self._stack.close()
            self.state.remove_stand_in()
            shutil.rmtree(self.path, ignore_errors=True)

    def sfctl(self, *arguments: str) -> None:
        """Run `sfctl` on this fleet.

        Raises:
            RuntimeError: it failed; with what it said.
        """
        program = Path(sys.executable).with_name("sfctl")
        done = subprocess.run(
            [program, "--state", self.path, "--timeout", str(START_LIMIT_S), *arguments],
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"sfctl {' '.join(arguments)} failed: {done.stderr.strip()}")

    def connect(self) -> Client:
        """A new client of its head."""
        return Client(api_address(self.state))

    @contextmanager
    def cut(self, name: str, hold_s: float) -> Iterator[float]:
        """No connection between head and an agent, for as long as this is entered."""
        proxy = self._proxies[name]
        proxy.refuse()
        proxy.now(lambda link: link.cut(reset=True))
        try:
            yield hold_s
        finally:
            proxy.refuse(False)

    def _configure(self, name: str, line: str) -> None:
        folder = self.state.nodes / name
        folder.mkdir(mode=0o700)
        (folder / "agent.toml").write_text(f'[node]\nidentity = "{name}"\n{line}\n')


def free_ports(count: int) -> list[str]:
    """Addresses of this machine that nobody listens at; a service gets them again after a kill."""
    found: list[str] = []
    ports = random.sample(_PORTS, len(_PORTS))
    while len(found) < count:
        with socket.socket() as one:
            address = (_LOCAL, ports.pop())
            if one.connect_ex(address) == 0:
                continue
        found.append(f"tcp://{address[0]}:{address[1]}")
    return found
