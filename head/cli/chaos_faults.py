"""What `sfctl chaos` does to the processes of one state folder on this machine, and undoes.

It finds them by what supervisord says, never by name alone, and signals only those. A process that
is stopped has a guard: a process of its own that lets it go on as soon as we do not hold it any
more, however we end.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from bus.agent_status import read_agent_status
from bus.errors import StartError
from bus.state import StateFolder
from head.cli.agents import NODE_GROUP
from head.cli.chaos_links import cut_links, may_cut_links
from head.cli.machine import HEAD_GROUP
from head.cli.processes import command_line, descendants, process
from head.cli.supervision import ServiceProcess, Supervisor

_WORKER = "agent.worker"
_RUNNING = "RUNNING"
#: Waits for the end of its input, which comes with our end too.
_GUARD = 'read -r _; kill -CONT "$1" 2>/dev/null'

#: Cuts the link of the agent of a name for as long as it is entered; gives the seconds to hold it.
CutLink = Callable[[str], AbstractContextManager[float]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of strike.

    Attributes:
        role: what is struck: worker, node (its agent) or head.
        way: kill, stop or cut.
    """

    name: str
    role: str
    way: str


#: In the order in which they come: no process is struck twice in a row, so that supervisord has
#: seen each one run again before the next strike.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("worker", "worker", "kill"),
        Kind("head", "head", "kill"),
        Kind("cut", "node", "cut"),
        Kind("agent", "node", "kill"),
        Kind("stop-worker", "worker", "stop"),
        Kind("stop-head", "head", "stop"),
        Kind("stop-agent", "node", "stop"),
    )
}


@dataclass(frozen=True, slots=True)
class LocalNode:
    """An agent that runs here: supervisord's name of it, and its identity in the fleet."""

    name: str
    identity: str
    pid: int


class LocalFleet:
    """The processes of one state folder.

    Args:
        state: its folder.
        model: workers of this model are the ones that are struck.
        stop_s: how long a stopped process stays so.
        cut: how links are cut; None closes the agent's own connection.
    """

    def __init__(
        self, state: StateFolder, model: str, *, stop_s: float, cut: CutLink | None = None
    ) -> None:
        self._state = state
        self._model = model
        self._stop_s = stop_s
        self._cut = cut or self._close_links
        self._supervisor = Supervisor(state)

    def nodes(self) -> list[LocalNode]:
        """The agents that run and have said who they are."""
        return [
            LocalNode(each.name, status.identity, each.pid)
            for each in self._running(NODE_GROUP)
            if (status := read_agent_status(self._state.nodes / each.name)) is not None
            and status.pid == each.pid
        ]

    @property
    def has_head(self) -> bool:
        """Whether a head runs here."""
        return bool(self._running(HEAD_GROUP))

    @property
    def may_cut(self) -> bool:
        """Whether the system lets this user cut links."""
        return all(may_cut_links(node.pid) for node in self.nodes())

    def missing(self) -> str:
        """What supervisord does not have up for long enough; empty when all is."""
        for each in self._supervisor.processes():
            if each.state != _RUNNING:
                return f"{each.name} is {each.state.lower()}"
        return ""

    @contextmanager
    def strike(self, kind: Kind, node: LocalNode | None) -> Iterator[float]:
        """Strike, and undo it at the end; gives how long it is to be held, in seconds.

        Args:
            node: the agent that is struck or whose worker or link is; None for the head.

        Raises:
            StartError: what is to be struck does not run.
        """
        if kind.way == "cut":
            with self._cut(_named(node).name) as hold_s:
                yield hold_s
        elif kind.way == "stop":
            with _stopped(self._pid(kind, node)):
                yield self._stop_s
        else:
            os.kill(self._pid(kind, node), signal.SIGKILL)
            yield 0.0

    # --- inside -------------------------------------------------------------------------------

    def _running(self, group: str) -> list[ServiceProcess]:
        return [each for each in self._supervisor.processes() if each.group == group and each.pid]

    def _pid(self, kind: Kind, node: LocalNode | None) -> int:
        if kind.role == "worker":
            return self._worker(_named(node))
        if kind.role == "node":
            return _named(node).pid
        for head in self._running(HEAD_GROUP):
            return head.pid
        raise StartError("no head runs here; leave its kinds out with --kinds")

    def _worker(self, node: LocalNode) -> int:
        for each in descendants(node.pid):
            words = command_line(each.pid)
            folders = [os.path.basename(word) for word in words]
            if _WORKER in words and self._model in folders:
                return each.pid
        raise StartError(f"{node.name} runs no worker of {self._model}; see: sfctl status")

    @contextmanager
    def _close_links(self, name: str) -> Iterator[float]:
        status = read_agent_status(self._state.nodes / name)
        pids = [each.pid for each in self._running(NODE_GROUP) if each.name == name]
        if status is None or not any(cut_links(pid, status.link.address) for pid in pids):
            raise StartError(f"{name} has no connection to its head to cut; see: sfctl status")
        yield 0.0


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    known = process(pid)
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(pid)],
        stdin=subprocess.PIPE,
        # Out of reach of a terminal's Ctrl-C and hang-up.
        start_new_session=True,
    )
    try:
        os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        # Communicating closes its input, and waits until it has done its work.
        guard.communicate()
        if known is not None and known.alive:
            os.kill(pid, signal.SIGCONT)


def _named(node: LocalNode | None) -> LocalNode:
    if node is None:
        raise StartError("no node agent runs here; start one with: sfctl up")
    return node


def known_kinds(names: Sequence[str]) -> list[Kind]:
    """The kinds of these names, in the order in which strikes come.

    Raises:
        KeyError: there is none of that name.
    """
    wanted = {KINDS[name].name for name in names}
    return [kind for kind in KINDS.values() if kind.name in wanted]
