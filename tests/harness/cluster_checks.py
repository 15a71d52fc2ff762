"""What tests wait for in a cluster of real processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.cluster import Cluster
from bus.client import Client

#: Generous, since tests run beside each other on few cores; nothing waits for it to pass.
LIMIT_S = 60.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Until a condition holds; `what` it is, for the failure of a test that waits in vain."""
    until = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > until:
            pytest.fail(f"not reached in {LIMIT_S} s: {what}")
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def busy(client: Client) -> tuple[int, int, int, int]:
    """Answers that run and wait, lanes in use, and tokens that they hold."""
    answers = client.status()["answers"]
    models = [model for node in client.nodes() for model in node["models"]]
    lanes = sum(model["lanes_used"] for model in models)
    return answers["running"], answers["queued"], lanes, sum(m["in_flight"] for m in models)


def check_idle(cluster: Cluster) -> None:
    """Wait until nothing runs, waits or holds a lane."""
    wait_for(lambda: busy(cluster.client) == (0, 0, 0, 0), "all counters are back at 0")
