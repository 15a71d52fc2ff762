"""Waits until the services of this machine can serve, by asking them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from bus.client import Client
from bus.client_address import api_address
from bus.errors import ConfigInvalid, NoHead, StartError, TimedOut, TokenRefused
from bus.state import StateFolder
from head.cli.output import one_line
from head.cli.supervision import FAILED_STATES, Supervisor

_ASK_EVERY_S = 0.2
_ANSWER_S = 5.0
#: A process may fail this often before it counts: one restart is not a fault yet.
_TRIES = 2
#: How a service ends that knows why it can not start.
_SAID = re.compile(r"(?:sf-head|sf-agent|error): (.+)")
_CLASS_OF_EXIT = {2: ConfigInvalid, 6: TokenRefused}


@dataclass(frozen=True, slots=True)
class Readiness:
    """What has to be there: heads and agents of this machine, and these models on each agent."""

    state: StateFolder
    heads: int
    nodes: int
    models: tuple[str, ...]

    def missing(self, report: Mapping[str, Any]) -> str:
        """What a status report still lacks; empty when all is there."""
        nodes = [node for node in report.get("nodes", []) if node.get("state") == "up"]
        lacking = [text for node in nodes if (text := self._lacks(node))]
        if len(nodes) - len(lacking) < self.nodes:
            if len(nodes) < self.nodes:
                return f"{len(nodes)} of {self.nodes} nodes have joined"
            return "; ".join(lacking)
        if self.nodes:
            for model in report.get("models", []):
                if model.get("name") in self.models and not model.get("ready"):
                    return f"{model['name']} at the head: its tokenizer is not ready"
        return ""

    def _lacks(self, node: Mapping[str, Any]) -> str:
        """The first model that a node can not serve yet, with its phase; empty when none."""
        phases = {model.get("name"): model for model in node.get("models", [])}
        for name in self.models:
            found = phases.get(name, {})
            if found.get("phase") != "ready":
                why = found.get("problem") or found.get("phase", "not there yet")
                return f"{name} on {node.get('identity')}: {why}"
        return ""


def wait_ready(wanted: Readiness, supervisor: Supervisor, timeout_s: float) -> None:
    """Ask until all is there.

    Raises:
        StartError: a service does not stay up; of the class that its exit code means.
        TimedOut: not all was there in time; says what was missing.
    """
    deadline = time.monotonic() + timeout_s
    watch = _Watch(supervisor, wanted.state)
    with _spinner() as show, _Asker(wanted) as asker:
        while True:
            missing = watch.check() or asker.ask()
            if not missing:
                return
            show(missing)
            if time.monotonic() >= deadline:
                raise TimedOut(
                    f"not ready after {timeout_s:.0f} s: {missing}; see sfctl logs, or allow more "
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

    def check(self) -> str:
        """What is not started yet; empty when all processes run.

        Raises:
            StartError: one does not stay up.
        """
        waiting = ""
        for process in self._supervisor.processes():
            starts = self._starts.setdefault(process.name, set())
            if process.started:
                starts.add(process.started)
            failing = process.state in FAILED_STATES and len(starts) >= _TRIES
            if process.state == "FATAL" or failing or len(starts) > _TRIES:
                raise why_not_up(self._state, process.name)
            if not process.pid:
                waiting = f"{process.name} is {process.state.lower()}"
        return waiting


def why_not_up(state: StateFolder, name: str) -> StartError:
    """The error of a service that ends again and again: its own words, when it said some."""
    said = _SAID.match(last_line(state.log / f"{name}.log"))
    if said is None:
        return StartError(f"{name} does not stay up; all that it said is in: sfctl logs {name}")
    ended = re.compile(rf"exited: {re.escape(name)} \(exit status (\d+);")
    codes = [found[1] for found in ended.finditer(_read(state.log / "supervisord.log"))]
    cls = _CLASS_OF_EXIT.get(int(codes[-1]) if codes else 1, StartError)
    return cls(f"{name} can not start: {said[1]}")


def explains_itself(log: Path) -> bool:
    """Whether the last thing that a service said is why it can not start."""
    return _SAID.match(last_line(log)) is not None


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

    def ask(self) -> str:
        """What is missing; empty when nothing is."""
        if not self._wanted.heads:
            return ""
        try:
            if self._client is None:
                self._client = Client(api_address(self._wanted.state))
            return self._wanted.missing(self._client.operation("status", timeout_s=_ANSWER_S))
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


@contextmanager
def _spinner() -> Iterator[Any]:
    """Shows what is waited for on a terminal's stderr; silent elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with Status("starting", console=Console(stderr=True)) as status:
        yield status.update
