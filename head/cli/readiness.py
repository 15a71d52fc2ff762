"""Waits until the services of this machine can serve, by asking them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from bus.agent_status import AgentLink, AgentStatus
from bus.client import Client
from bus.client_address import api_address
from bus.errors import (
    ConfigInvalid,
    NoHead,
    NotFound,
    StartError,
    SuperfluidError,
    TimedOut,
    TokenRefused,
)
from bus.state import StateFolder
from head.cli.agents import (
    NODE_GROUP,
    AgentPlan,
    lasting_fault,
    not_ready,
    running_status,
    served,
)
from head.cli.interrupts import raise_if_ended
from head.cli.nodes import LIVE, node_names
from head.cli.output import note, one_line
from head.cli.supervision import FAILED_STATES, Supervisor

#: How long all may take, and how long agents alone look for a head before `up` leaves them to it.
UP_TIMEOUT_S = 180.0
UNREACHABLE_S = 15.0
_ASK_EVERY_S = 0.2
_ANSWER_S = 5.0
#: A process may fail this often before it counts: one restart is not a fault yet.
_TRIES = 2
_LAST_LINES = 5
#: How a service ends that knows why it can not start.
_SAID = re.compile(r"(?:sf-head|sf-agent|error): (.+)")
_CLASS_OF_EXIT = {2: ConfigInvalid, 5: NotFound, 6: TokenRefused}


@dataclass(frozen=True, slots=True)
class Readiness:
    """What has to be there on this machine.

    Attributes:
        heads: 0 or 1.
        agents: what each is to serve.
    """

    state: StateFolder
    heads: int
    agents: tuple[AgentPlan, ...]

    def missing_at_agents(self, told: Mapping[str, AgentStatus]) -> str:
        """What agents still lack by their own word; empty when all is there.

        Raises:
            SuperfluidError: one can not serve, or not join, and waiting does not mend it.
        """
        own_head = self._own_head()
        for plan in self.agents:
            if status := told.get(plan.name):
                fault = lasting_fault(plan, status, None if plan.head else own_head)
                if fault is not None:
                    raise fault
        lacking = (not_ready(plan, told.get(plan.name)) for plan in self.agents)
        return next(filter(None, lacking), "")

    def without_head(self, told: Mapping[str, AgentStatus]) -> str:
        """The first agent that has no head, where none runs here: which, and what keeps it."""
        if self.heads:
            return ""
        return next(
            (
                f"{name}: {_no_link(status.link)}"
                for name, status in told.items()
                if not status.link.up
            ),
            "",
        )

    def missing_at_head(self, report: Mapping[str, Any], told: Mapping[str, AgentStatus]) -> str:
        """What the head's status report lacks of those agents that are its own."""
        nodes = {node.get("identity"): node for node in report.get("nodes", [])}
        for plan in self.agents:
            if plan.head:
                continue  # It may have another head.
            node = nodes.get(told[plan.name].identity)
            if node is None or node.get("state") not in LIVE:
                return f"{plan.name} has not joined yet"
            ready = {
                name
                for each in node.get("models", [])
                if each.get("phase") == "ready" or (each.get("stage") or {}).get("loaded")
                for name in node_names(each)
            }
            for model in served(plan, told[plan.name]):
                if model.name not in ready:
                    return f"the head has not heard of {model.name} on {plan.name} yet"
        known = {name for plan in self.agents for name in plan.models}
        for model in report.get("models", []):
            here = model.get("name") in known and model.get("tokenizer") in ("own", "fetching")
            if here and model.get("nodes") and not model.get("ready"):
                return f"{model['name']} at the head: its tokenizer is not ready"
        return ""

    def _own_head(self) -> str:
        try:
            return str((self.state.read_head() or {}).get("fleet", ""))
        except StartError:
            return ""


def wait_ready(wanted: Readiness, supervisor: Supervisor, timeout_s: float | None) -> str:
    """Ask until all is there.

    Args:
        timeout_s: how long; None takes 180 s, of which 15 s for a head that is elsewhere.

    Returns:
        Empty when all is there; else why agents, which run alone here, have no head yet. They
        need none to go on: they look for it for ever.

    Raises:
        SuperfluidError: a service does not stay up, or can not serve; of the class of its error.
        TimedOut: not all was there in time; says what was missing.
        KeyboardInterrupt, Ended: a signal came that nothing raised.
    """
    limit_s = timeout_s or UP_TIMEOUT_S
    begin = time.monotonic()
    lonely_since: float | None = None
    watch = _Watch(supervisor, wanted.state)
    with _progress() as show, _Asker(wanted) as asker:
        while True:
            waiting, told = watch.check()
            missing = wanted.missing_at_agents(told) or waiting or asker.ask(told)
            raise_if_ended()
            if not missing:
                return ""
            without = wanted.without_head(told)
            show(missing, without if any(each.link.reason for each in told.values()) else "")
            now = time.monotonic()
            lonely_since = (lonely_since or now) if without else None
            patience_s = limit_s if timeout_s else UNREACHABLE_S
            if lonely_since is not None and now - lonely_since >= patience_s:
                return without
            if now - begin >= limit_s:
                if without:
                    return without
                raise TimedOut(
                    f"not ready after {limit_s:g} s: {missing}; see: sfctl doctor, or allow more "
                    "with --timeout"
                )
            # Readiness is a figure of another process; asking again is how it is awaited.
            time.sleep(_ASK_EVERY_S)


class _Watch:
    """Sees services that fail again and again."""

    def __init__(self, supervisor: Supervisor, state: StateFolder) -> None:
        self._supervisor = supervisor
        self._state = state
        self._starts: dict[str, set[int]] = {}

    def check(self) -> tuple[str, dict[str, AgentStatus]]:
        """What is not started yet, and what the agents that run tell of themselves.

        Raises:
            StartError: a process does not stay up.
        """
        waiting, told = "", {}
        for process in self._supervisor.processes():
            starts = self._starts.setdefault(process.name, set())
            if process.started:
                starts.add(process.started)
            failing = process.state in FAILED_STATES and len(starts) >= _TRIES
            if process.state == "FATAL" or failing or len(starts) > _TRIES:
                raise why_not_up(self._state, process.name)
            if not process.pid:
                waiting = f"{process.name} is {process.state.lower()}"
            elif process.group == NODE_GROUP:
                status = running_status(self._state, process)
                if status is not None:
                    told[process.name] = status
        return waiting, told


def why_not_up(state: StateFolder, name: str) -> SuperfluidError:
    """The error of a service that ends again and again: its own words, when it said some."""
    log = state.log / f"{name}.log"
    said = _SAID.match(last_line(log))
    if said is None:
        error = StartError(f"{name} does not stay up; all that it said is in: sfctl logs {name}")
        error.add_note(f"last lines of {log}:")
        for line in _read(log).splitlines()[-_LAST_LINES:]:
            error.add_note(f"  {line}")
        return error
    ended = re.compile(rf"exited: {re.escape(name)} \(exit status (\d+);")
    codes = [found[1] for found in ended.finditer(_read(state.log / "supervisord.log"))]
    cls = _CLASS_OF_EXIT.get(int(codes[-1]) if codes else 1, StartError)
    return cls(f"{name} can not start: {said[1]}")


def last_line(file: Path) -> str:
    """The last line of a log; empty when there is none."""
    return one_line(next(iter(_read(file).rstrip().splitlines()[-1:]), ""))


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError:
        return ""


class _Asker:
    """Asks the head for its status; one connection, taken again when it is lost."""

    def __init__(self, wanted: Readiness) -> None:
        self._wanted = wanted
        self._client: Client | None = None

    def ask(self, told: Mapping[str, AgentStatus]) -> str:
        """What is missing at the head; empty when nothing is, or no head is here."""
        if not self._wanted.heads:
            return ""
        try:
            if self._client is None:
                self._client = Client(api_address(self._wanted.state))
            report = self._client.operation("status", timeout_s=_ANSWER_S)
            return self._wanted.missing_at_head(report, told)
        except (NoHead, TimedOut) as error:
            self._close()
            return f"the head does not answer yet ({one_line(error.message)})"

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> _Asker:
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()


def _no_link(link: AgentLink) -> str:
    """Why there is none, with the address."""
    why = link.reason or f"not linked to {link.peer} yet"
    return why if link.address in why else f"{why} ({link.address})"


@contextmanager
def _progress() -> Iterator[Callable[[str, str], None]]:
    """Gives `show(missing, reason)`: a spinner on a terminal, else a line a reason."""
    if sys.stderr.isatty():
        with Status("starting", console=Console(stderr=True)) as status:
            yield lambda missing, reason: status.update(missing)
        return
    said: set[str] = set()

    def show(missing: str, reason: str) -> None:
        if reason and reason not in said:
            said.add(reason)
            note(f"waiting: {reason}")

    yield show
