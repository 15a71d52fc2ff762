"""A bench's other side: a module of ours as a child process, spoken to by lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bus.closing import Closing


class Program(Closing):
    """Takes a line and answers it with one JSON object a line; ends when its input does.

    Args:
        module: run as `python -m`.
        arguments: its own.
        python: the interpreter of its environment; ours by default.
        env: added to this process's environment.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        python: str | Path = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, line: str) -> None:
        """Say a line; `answer` gives what it says to that."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """What it says next.

        Raises:
            RuntimeError: it ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._module} ended; its errors are above")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End it; waits until it has."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
