"""Services of ours as processes whose log is read line by line, as JSON."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bus.closing import Closing

#: Generous, since tests run beside each other on few cores; nothing waits for it to pass.
LIMIT_S = 60.0


class LoggedProcess(Closing):
    """`python -P -m MODULE --state STATE ...`; killed at exit when it still runs.

    Args:
        settings: further environment, `SUPERFLUID_<SECTION>_<KEY>`.
    """

    def __init__(self, module: str, state: Path, *arguments: str, **settings: str) -> None:
        inherited = {n: v for n, v in os.environ.items() if not n.startswith("SUPERFLUID_")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, "--state", str(state), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**inherited, "SUPERFLUID_LOG_JSON": "true", **settings},
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        self._unread = b""
        self.lines: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def children(self) -> list[int]:
        """Process ids of its children."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def wait_for(self, event: str, **pairs: object) -> dict[str, Any]:
        """The next log line of this event with these pairs."""
        until = time.monotonic() + LIMIT_S
        while (line := self._read_line(until)) is not None:
            body = json.loads(line) if line.startswith("{") else {}
            if body.get("event") == event and pairs.items() <= body.items():
                return dict(body)
        raise AssertionError(f"no {event} {pairs} in:\n" + "\n".join(self.lines))

    def _read_line(self, until: float) -> str | None:
        while b"\n" not in self._unread:
            wait_s = max(0.0, until - time.monotonic())
            if not select.select([self._out], [], [], wait_s)[0]:
                return None
            data = os.read(self._out.fileno(), 65536)
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        self.lines.append(line.decode())
        return self.lines[-1]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit status."""
        return self._process.wait(LIMIT_S)

    def rest(self) -> str:
        """What it still wrote, up to its end."""
        self._unread += self._out.read()
        return self._unread.decode()

    def close(self) -> None:
        """Kill it when it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._out.close()
