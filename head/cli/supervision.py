"""supervisord as this machine's process keeper: start it, ask it, end it (XML-RPC, unix socket)."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import sysconfig
import xmlrpc.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bus.errors import StartError
from bus.state import StateFolder
from head.cli.output import one_line

#: Longer than any service's stopwaitsecs: a stop is answered when the service has ended.
RPC_TIMEOUT_S = 60.0
#: How long supervisord itself may take to read its file and go into the background.
_START_S = 30.0
_CONF = "supervisord.conf"

#: States of a process in which it will not come up by waiting a little (supervisor's names).
FAILED_STATES = frozenset({"BACKOFF", "FATAL", "EXITED", "UNKNOWN"})


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One process that supervisord keeps.

    Attributes:
        name: `head`, or `node-1`.
        state: supervisor's name of it.
        pid: 0 is none.
        started: when it was last started, in seconds of wall time; tells one start from another.
    """

    name: str
    group: str
    state: str
    pid: int
    started: int


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class _UnixTransport(xmlrpc.client.Transport):
    """XML-RPC over a unix socket, with a limit on every wait."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__()
        self._path, self._timeout_s = path, timeout_s

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        return _UnixConnection(self._path, self._timeout_s)


class Supervisor:
    """The supervisord of one state folder. Holds nothing open between calls."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state
        self.socket = state.run / "supervisor.sock"

    def running(self) -> bool:
        """Whether it answers."""
        try:
            self._call("getState")
        except StartError:
            return False
        return True

    def pid(self) -> int:
        """Its own process id."""
        return int(self._call("getPID"))

    def processes(self) -> list[ServiceProcess]:
        """All that it keeps, the head first."""
        found = [
            ServiceProcess(
                str(info["name"]),
                str(info["group"]),
                str(info["statename"]),
                int(info["pid"]),
                int(info["start"]),
            )
            for info in self._call("getAllProcessInfo")
        ]
        return sorted(found, key=lambda process: (process.group, process.name))

    def stop_group(self, group: str) -> None:
        """End a group's processes and wait until they have ended."""
        self._call("stopProcessGroup", group)

    def shutdown(self) -> None:
        """End it with all that it keeps; returns at once."""
        self._call("shutdown")

    def start(self, *, heads: int, nodes: int) -> None:
        """Start it in the background.

        Raises:
            StartError: it did not start; says what it said.
        """
        command = [sys.executable, "-P", "-m", "supervisor.supervisord", "-c", str(conf_file())]
        try:
            done = subprocess.run(
                command,
                env=self._environment(heads, nodes),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_START_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StartError(f"supervisord did not start in {_START_S:.0f} s; try again") from error
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            last = one_line(said[-1]) if said else f"status {done.returncode}"
            log = self._state.log / "supervisord.log"
            raise StartError(f"supervisord did not start: {last}; more may be in {log}")

    def _environment(self, heads: int, nodes: int) -> dict[str, str]:
        # PYTHONPATH of a shell must not reach services that start with -P for the same reason.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return kept | {
            "SUPERFLUID_STATE": str(self._state.path),
            "SUPERFLUID_RUN": str(self._state.run),
            "SUPERFLUID_PYTHON": sys.executable,
            "SUPERFLUID_HEADS": str(heads),
            "SUPERFLUID_NODES": str(nodes),
        }

    def _call(self, method: str, *arguments: Any) -> Any:
        transport = _UnixTransport(self.socket, RPC_TIMEOUT_S)
        proxy = xmlrpc.client.ServerProxy("http://localhost", transport=transport)
        try:
            with proxy:
                return getattr(proxy.supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            raise StartError(
                f"supervisord refused {method}: {one_line(fault.faultString)}; see: sfctl logs "
                "supervisord"
            ) from fault
        except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
            raise StartError(
                f"supervisord does not answer at {self.socket}: {error}; start it with: sfctl up"
            ) from error


def conf_file() -> Path:
    """The shipped supervisord.conf: beside the packages in a checkout, else where pip put it.

    Raises:
        StartError: neither is there.
    """
    beside = Path(__file__).resolve().parents[2] / "conf" / _CONF
    installed = Path(sysconfig.get_path("data")) / "share" / "superfluid" / "conf" / _CONF
    for file in (beside, installed):
        if file.is_file():
            return file
    raise StartError(
        f"{_CONF} is neither at {beside} nor at {installed}; install superfluid-fleet again"
    )
