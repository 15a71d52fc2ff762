"""Runs programs of the agent's side, which print JSON lines (agent.models, agent.check)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bus.errors import ERROR_TABLE, Internal
from head.cli.output import Report, one_line

#: How long the program may take to clean up after it was told to stop.
_STOP_S = 10.0


def _untold(step: str, done: int, total: int) -> None:
    """Nobody watches."""


def run_model_program(
    arguments: Sequence[str], report: Report = _untold
) -> tuple[Path, list[dict[str, Any]]]:
    """Run `python -P -m agent.models ...` to its end; as `run_program`."""
    return run_program("agent.models", arguments, report)


def run_program(
    module: str, arguments: Sequence[str], report: Report = _untold
) -> tuple[Path, list[dict[str, Any]]]:
    """Run `python -P -m MODULE ...` to its end.

    Args:
        module: of the program.
        arguments: the command's own.
        report: told each progress line.

    Returns:
        The path that it ended with, and the other lines it printed, without their `event`.

    Raises:
        SuperfluidError: the error that it reported, or Internal when it died without one.
    """
    done: Path | None = None
    rows = []
    with _program(module, arguments) as program:
        for line in program.stdout or ():
            event = _parse(line)
            if event.get("event") == "progress":
                report(str(event["step"]), int(event["done"]), int(event["total"]))
            elif event.get("event") == "done":
                done = Path(str(event["path"]))
            elif event.get("event") == "error":
                cls = ERROR_TABLE.get(str(event.get("code")), Internal)
                param = event.get("param")
                raise cls(str(event.get("message")), param=None if param is None else str(param))
            else:
                rows.append({key: value for key, value in event.items() if key != "event"})
        _, said = program.communicate()
    if program.returncode != 0 or done is None:
        last = one_line(said.strip().splitlines()[-1]) if said.strip() else "it said nothing"
        raise Internal(
            f"{module} ended with status {program.returncode}: {last}; "
            "see what is wrong with: sfctl doctor"
        )
    return done, rows


@contextmanager
def _program(module: str, arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """The running program; ended when the `with` is left."""
    program = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    with program:
        try:
            yield program
        finally:
            if program.poll() is None:
                program.terminate()
                try:
                    program.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    program.kill()


def _parse(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise Internal(f"a program of ours said what is no line of JSON: {one_line(line)}")
    return event
