"""An agent's process that is stopped for 5, 12 and 35 s under a silence limit of 30 s.

Both figures are scaled here, the limit to 2 s and the stops with it; `make faults-long` takes them
as they are, and with them a stop that outlasts a lease of 20 s, which is not scaled.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.harness.fault_cluster import DIALED, JOINED, FaultCluster

REAL_SILENCE_S = 30.0
SILENCE_S = float(os.environ.get("SUPERFLUID_TEST_SILENCE_S", "2"))
PROMPTS = [[number, 7, 11] for number in range(1, 5)]
MAX_NEW = 1200


@pytest.fixture(scope="module")
def cluster() -> Iterator[FaultCluster]:
    # The wait for a lost link is scaled like the stops, which would end within it otherwise.
    reattach_s = 0.5 * SILENCE_S / REAL_SILENCE_S
    with FaultCluster(SILENCE_S, SUPERFLUID_SESSIONS_REATTACH_S=str(reattach_s)) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(cluster: FaultCluster) -> list[tuple[int, ...]]:
    """The tokens of each prompt's answer when nothing happens."""
    return [call.result().tokens for call in cluster.begin(PROMPTS, MAX_NEW, tokens=0)]


@pytest.mark.parametrize("agent", [JOINED, DIALED], ids=["joined", "dialed"])
@pytest.mark.parametrize("stop_s", [5.0, 12.0, 35.0])
def test_streams_wait_for_an_agent_that_is_stopped_and_leave_one_that_is_silent(
    stop_s: float, agent: str, cluster: FaultCluster, undisturbed: list[tuple[int, ...]]
) -> None:
    calls = cluster.begin(PROMPTS, MAX_NEW, tokens=5)
    os.kill(cluster.pid(agent), signal.SIGSTOP)
    try:
        time.sleep(stop_s * SILENCE_S / REAL_SILENCE_S)
    finally:
        os.kill(cluster.pid(agent), signal.SIGCONT)
    answers = [call.result() for call in calls]
    assert [answer.tokens for answer in answers] == undisturbed
    here = sum(answer.node == agent for answer in answers)
    assert here == (2 if stop_s < REAL_SILENCE_S else 0)
    cluster.heal(cluster.proxies[agent])
