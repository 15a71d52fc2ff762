"""`sfctl node drain`, `undrain` and `label` of a node whose worker stands still, then goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from bench.cluster import Cluster
from tests.e2e.test_cluster import PROMPT

#: How a command that waited in vain ends.
TIMED_OUT = 8


def test_drain_waits_says_what_stays_and_goes_on_where_it_was(cluster: Cluster) -> None:
    call = cluster.client.generate(cluster.model, PROMPT, max_new=2000, ignore_eos=True)
    while not call.tokens:
        call.next_event(None)
    (worker,) = cluster.workers("node-1")
    os.kill(worker, signal.SIGSTOP)
    try:
        with pytest.raises(subprocess.CalledProcessError) as failed:
            cluster.sfctl("--timeout", "1", "node", "drain", "node-1", "--wait")
    finally:
        os.kill(worker, signal.SIGCONT)
    assert failed.value.returncode == TIMED_OUT
    assert "1 stream is on" in failed.value.stderr
    assert "no node can serve" in failed.value.stderr
    # It was drained nonetheless, and is once the stream has ended.
    shown = json.loads(cluster.sfctl("node", "drain", "node-1", "--wait", "-o", "json"))
    assert (shown["state"], shown["draining"], shown["generations"]) == ("drained", True, 0)
    assert len(call.result().tokens) == 2000

    cluster.sfctl("node", "label", "node-1", "rack=3", "gpu=none")
    cluster.sfctl("node", "label", "node-1", "gpu=")
    (listed,) = json.loads(cluster.sfctl("node", "ls", "-o", "json"))
    assert (listed["state"], listed["labels"]) == ("drained", {"rack": "3"})
    assert "rack=3" in cluster.sfctl("node", "ls")
    with pytest.raises(subprocess.CalledProcessError) as unhealthy:
        cluster.sfctl("status")
    assert "node undrain" in unhealthy.value.stderr
    assert json.loads(cluster.sfctl("node", "undrain", "node-1", "-o", "json"))["state"] == "up"
    assert len(cluster.client.generate(cluster.model, PROMPT, max_new=3).result().tokens) <= 3
