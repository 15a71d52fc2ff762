"""L13, the ends that tests of stalls leave out: clients, workers, and agents of stopped workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.worker.mailbox import MOST_KEPT
from bench.cluster import Cluster
from bus.messages.worker import WORKER, Ping, Ready, Stop
from tests.e2e.test_cases_stalls import END_LIMIT_S
from tests.harness.cluster_checks import alive, wait_for
from tests.harness.link_processes import agent_process, make_state
from tests.harness.models import toy_model_folder
from tests.harness.worker_agent import Agent


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(toy_model_folder().path, threads=1) as made:
        yield made


@pytest.mark.parametrize("ending", ["end of the script", "sys.exit(0)", "client.close()"])
def test_l13_a_client_with_unsent_requests_ends_though_the_head_stands_still(
    cluster: Cluster, ending: str
) -> None:
    script = f"""
import sys, superfluid
client = superfluid.connect("ipc://{cluster.state}/run/api.sock")
client.ping()
print("connected", flush=True)
sys.stdin.readline()
calls = [client.generate({cluster.model!r}, [65] * 4000, max_new=5) for _ in range(500)]
print("asked", flush=True)
{ending if "(" in ending else ""}
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stdout.readline() == "connected\n"
        os.kill(cluster.pid("head"), signal.SIGSTOP)
        try:
            client.stdin.write("go\n")
            client.stdin.flush()
            assert client.stdout.readline() == "asked\n"
            started = time.monotonic()
            assert client.wait(END_LIMIT_S) == 0
            assert time.monotonic() - started < END_LIMIT_S
        finally:
            os.kill(cluster.pid("head"), signal.SIGCONT)
    assert cluster.client.generate(cluster.model, "after", max_new=3).result().finish == "length"


def test_l13_a_worker_with_unsent_messages_ends_when_told(run_dir: Path) -> None:
    agent = Agent(toy_model_folder().path, run_dir, "--lanes", "2", "--kv-bytes", str(4 << 20))
    try:
        agent.take(Ready)
        # Nobody reads the answers: the pipe's 512 places fill, and the rest waits in the worker,
        # which goes on reading until it keeps `MOST_KEPT`.
        ping, stop = WORKER.encode(Ping(nonce=1)), WORKER.encode(Stop())
        for _ in range(MOST_KEPT):
            wait_for(lambda: agent.child.pipe.send(ping), "the worker goes on reading")
        wait_for(lambda: agent.child.pipe.send(stop), "the worker goes on reading")
        started = time.monotonic()
        assert agent.exit_code() == 0
        assert time.monotonic() - started < END_LIMIT_S
    finally:
        agent.close()


@pytest.mark.parametrize("moment", ["loading", "serving"])
def test_l13_an_agent_ends_a_worker_that_can_not_hear_it(tmp_path: Path, moment: str) -> None:
    state = make_state(tmp_path / "s")
    (state / "agent.toml").write_text("[node]\nstop_grace_s = 1.0\n")
    with agent_process(state) as agent:
        agent.wait_for("worker_started" if moment == "loading" else "worker_ready")
        (worker,) = agent.children()
        os.kill(worker, signal.SIGSTOP)
        started = time.monotonic()
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 0
        assert time.monotonic() - started < END_LIMIT_S
        wait_for(lambda: not alive(worker), "no orphan")
    assert list((state / "run").glob("*.sock")) == []
