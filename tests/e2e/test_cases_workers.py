"""Cases from the field: workers that stand still or are busy under streams; by their numbers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agent.config import default_identity
from bench.cluster import Cluster
from bus.call import Call, Placed
from bus.errors import TimedOut
from tests.e2e.test_hung_worker import FAULTS
from tests.harness.cluster_checks import wait_for
from tests.harness.models import toy_model_folder

PROMPT = list(b"The quick brown fox")
OPTIONS: dict[str, Any] = {"max_new": 1500, "temperature": 0.0, "ignore_eos": True}


@contextlib.contextmanager
def cluster(
    *, nodes: int = 1, fault_s: int = 60, stall_limit_s: float, **limits: float
) -> Iterator[Cluster]:
    """A fleet whose workers are asked for their counters five times a second.

    Args:
        limits: further settings by `<section>_<key>`.
    """
    settings = {f"SUPERFLUID_{name.upper()}": str(value) for name, value in limits.items()} | {
        "SUPERFLUID_NODE_STATUS_INTERVAL_S": "0.2",
        "SUPERFLUID_WORKER_PING_INTERVAL_S": "0.2",
        "SUPERFLUID_WORKER_STALL_LIMIT_S": str(stall_limit_s),
        "PYTHONPATH": os.pathsep.join(filter(None, (FAULTS, os.environ.get("PYTHONPATH")))),
        "FAULT_S": str(fault_s),
    }
    with Cluster(toy_model_folder().path, threads=1, nodes=nodes, settings=settings) as made:
        yield made


def start(made: Cluster) -> tuple[Call, str]:
    """A stream of which five tokens have come, and the name of its node."""
    call = made.client.generate(made.model, PROMPT, **OPTIONS)
    identity = ""
    while len(call.tokens) < 5:
        event = call.next_event(None)
        if isinstance(event, Placed):
            identity = event.node
    names = (f"node-{number}" for number in range(1, 9))
    return call, next(
        name for name in names if default_identity(made.state / "nodes" / name) == identity
    )


def only_worker(made: Cluster, name: str) -> int:
    (worker,) = made.workers(name)
    return worker


def states(made: Cluster) -> list[str]:
    return [node["state"] for node in made.client.nodes()]


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGUSR2], ids=["stopped", "asleep"])
def test_l6_a_worker_that_stands_still_is_replaced_and_its_stream_goes_on(
    fault: signal.Signals,
) -> None:
    with cluster(stall_limit_s=1.0) as made:
        alone = made.client.generate(made.model, PROMPT, **OPTIONS).result()
        call, name = start(made)
        worker = only_worker(made, name)
        os.kill(worker, fault)
        assert call.result().tokens == alone.tokens
        assert only_worker(made, name) != worker
        assert states(made) == ["up"], "the node stays"
        assert "link_down" not in made.log("head")
        again = made.client.generate(made.model, PROMPT, **OPTIONS).result()
        assert again.tokens == alone.tokens


def test_l6_its_streams_move_to_another_node_and_the_node_takes_work_again() -> None:
    with cluster(nodes=2, stall_limit_s=1.0) as made:
        alone = made.client.generate(made.model, PROMPT, **OPTIONS).result()
        calls = [start(made) for _ in range(4)]
        name = calls[0][1]
        worker = only_worker(made, name)
        os.kill(worker, signal.SIGSTOP)
        assert [call.result().tokens for call, _ in calls] == [alone.tokens] * 4
        made.wait_ready()
        assert only_worker(made, name) != worker
        assert states(made) == ["up", "up"]
        served = {start(made)[1] for _ in range(4)}
        assert name in served


def test_l6_what_is_sent_to_a_worker_that_had_stopped_while_idle_moves_too() -> None:
    with cluster(stall_limit_s=1.5) as made:
        alone = made.client.generate(made.model, PROMPT, **OPTIONS).result()
        worker = only_worker(made, "node-1")
        os.kill(worker, signal.SIGSTOP)
        assert made.client.generate(made.model, PROMPT, **OPTIONS).result().tokens == alone.tokens
        assert only_worker(made, "node-1") != worker


def test_l6_a_stop_shorter_than_the_limit_only_delays() -> None:
    with cluster(stall_limit_s=20.0) as made:
        alone = made.client.generate(made.model, PROMPT, **OPTIONS).result()
        call, name = start(made)
        worker = only_worker(made, name)
        os.kill(worker, signal.SIGSTOP)
        time.sleep(3.0)  # The fault itself.
        os.kill(worker, signal.SIGCONT)
        assert call.result().tokens == alone.tokens
        assert only_worker(made, name) == worker
        assert "worker_hung" not in made.log(name)


def test_l5_a_worker_that_computes_for_long_is_busy_and_its_node_is_never_lost() -> None:
    # Beyond both limits without a step or an answer, its GIL held, its CPU busy.
    with cluster(stall_limit_s=2.0, fault_s=6, fleet_silence_s=3.0, node_silence_s=3.0) as made:
        alone = made.client.generate(made.model, PROMPT, **OPTIONS).result()
        call, name = start(made)
        worker = only_worker(made, name)
        os.kill(worker, signal.SIGUSR1)
        seen = set(states(made))
        while "fault_over" not in made.log(name):
            seen.update(states(made))
            time.sleep(0.05)
        assert call.result().tokens == alone.tokens
        assert seen == {"up"}
        assert only_worker(made, name) == worker
        assert "worker_hung" not in made.log(name)
        assert "link_down" not in made.log("head")


def test_l5_beyond_the_hard_limit_it_is_hung_and_its_stream_goes_on() -> None:
    with cluster(stall_limit_s=1.0, worker_stall_hard_s=3.0) as made:
        alone = made.client.generate(made.model, PROMPT, **OPTIONS).result()
        call, name = start(made)
        worker = only_worker(made, name)
        os.kill(worker, signal.SIGUSR1)
        began = time.monotonic()
        assert call.result().tokens == alone.tokens
        # Counted from its last sign of life, which was a little before.
        assert time.monotonic() - began > 2.0
        assert "worker.stall_hard_s" in made.log(name)
        assert only_worker(made, name) != worker
        assert states(made) == ["up"]
        assert "link_down" not in made.log("head")


def test_l5_prefill_is_seen_at_the_head_as_progress() -> None:
    with cluster(stall_limit_s=60.0) as made:

        def progress() -> tuple[str, int]:
            model = made.client.nodes()[0]["models"][0]
            return model["worker_phase"], model["steps"]

        wait_for(lambda: progress()[0] == "idle", "idle at first")
        calls = [
            # An interactive prompt that is alone would be read in longer chunks.
            made.client.generate(made.model, [byte] * 3000, max_new=1, qos="completion")
            for byte in range(40, 52)
        ]
        shown: list[tuple[str, int]] = []
        while not calls[-1].done:
            with contextlib.suppress(TimedOut):
                calls[-1].result(0.05)
            shown.append(progress())
        assert "prefill" in {phase for phase, _ in shown}
        counts = [steps for _, steps in shown]
        assert counts == sorted(counts)
        wait_for(lambda: progress()[0] == "idle", "idle again")
        # 24 chunks for each prompt: none of it was a decode step.
        assert progress()[1] == 24 * len(calls)
