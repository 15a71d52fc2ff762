"""Case G2 through real processes: cancel, goodbye and vanish at every stage, streaming and not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster
from bus.call import Call
from bus.client import Client
from tests.harness.cluster_checks import busy, check_idle, wait_for
from tests.harness.models import toy_model_folder

STAGES = {"queue": "queued", "prefill": "placed", "decode": "token"}
#: One that streams takes what comes; one that does not has room for one event.
CREDITS = {"streaming": 4096, "not streaming": 1}
PROMPT = list(b"The quick brown fox")
#: Fills the toy's window but for some tokens: 32 chunks of prefill.
LONG = [120] * 4000
#: A lane may take a step and this long; a step of the toy is counted in.
FREE_S = 0.1
#: How often a time is taken; the least counts, since others use these cores too.
TRIES = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node with one lane, which may have one more request ahead."""
    settings = {"SUPERFLUID_NODE_STATUS_INTERVAL_S": "0.2"}
    with Cluster(toy_model_folder().path, threads=1, lanes=1, settings=settings) as made:
        yield made


def ask(client: Client, model: str, max_new: int = 4000) -> Call:
    return client.generate(model, PROMPT, max_new=max_new, ignore_eos=True)


def reach(call: Call, kind: str) -> None:
    while (event := call.next_event(None)) is not None and event.type != kind:
        pass
    assert event is not None, f"it ended before {kind}"


def leave(cluster: Cluster, way: str, stage: str, credit: int) -> float:
    """Leave at a stage; gives the seconds until its place is free for another."""
    observer, leaver = cluster.client, cluster.connect()
    before = [ask(observer, cluster.model) for _ in range(2 if stage == "queue" else 0)]
    for call in before:
        reach(call, "placed")
    prompt = LONG if stage == "prefill" else PROMPT
    leaving = leaver.generate(cluster.model, prompt, max_new=4000, ignore_eos=True, credit=credit)
    reach(leaving, STAGES[stage])
    following = None
    if stage != "queue":
        # It is on the node already, and has its one token when the lane is free.
        following = ask(observer, cluster.model, max_new=1)
        reach(following, "placed")
    start = time.monotonic()
    if way == "cancel":
        leaving.cancel()
        leaver.flush()
    else:
        leaver.close()
    if following is not None:
        assert following.result().finish == "length"
    else:
        while observer.status()["answers"]["queued"]:
            pass
    took_s = time.monotonic() - start
    if way == "cancel":
        answer = leaving.result()
        assert answer.finish == "cancelled"
        assert bool(answer.tokens) == (stage == "decode")
        leaver.close()
    for call in before:
        call.cancel()
    assert {call.result().finish for call in before} <= {"cancelled"}
    return took_s


@pytest.mark.parametrize("reading", CREDITS)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("way", ["cancel", "goodbye"])
def test_g2_the_lane_is_free_at_once_and_the_counters_return(
    way: str, stage: str, reading: str, cluster: Cluster
) -> None:
    count = 200
    start = time.monotonic()
    ask(cluster.client, cluster.model, max_new=count).result()
    step_s = (time.monotonic() - start) / count
    took = [leave(cluster, way, stage, CREDITS[reading]) for _ in range(TRIES)]
    assert min(took) < step_s + FREE_S
    check_idle(cluster)


@pytest.fixture
def pair_of_lanes() -> Iterator[Cluster]:
    settings = {"SUPERFLUID_NODE_STATUS_INTERVAL_S": "0.2"}
    with Cluster(toy_model_folder().path, threads=1, lanes=2, settings=settings) as made:
        yield made


def vanish(cluster: Cluster, worker: int, on_disconnect: str) -> None:
    """A client is killed that has a request at every stage, each with its name as its key.

    It stops the worker before, so that nothing gets beyond its stage while its grace passes.
    """
    script = f"""
import os, signal, superfluid
client = superfluid.connect("ipc://{cluster.state}/run/api.sock")
def ask(name, prompt, max_new=60, credit=4096):
    return client.generate({cluster.model!r}, prompt, max_new=max_new, credit=credit, key=name,
                           ignore_eos=True, temperature=0.0, on_disconnect={on_disconnect!r})
def reach(call, kind):
    while call.next_event(None).type != kind:
        pass
decode = ask("decode", {PROMPT}, max_new={DECODED}, credit=1)
reach(decode, "token")
prefill = ask("prefill", {LONG})
reach(prefill, "placed")
os.kill({worker}, signal.SIGSTOP)
ahead, queue = ask("ahead", {PROMPT}), ask("queue", {PROMPT})
reach(queue, "queued")
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


NAMES = ("decode", "prefill", "ahead", "queue")
#: Tokens of the one that is in decode: more than are made while the others are asked.
DECODED = 2000


def test_g2_vanished_at_every_stage_ends_after_5_s_and_the_counters_return(
    pair_of_lanes: Cluster,
) -> None:
    cluster = pair_of_lanes
    (worker,) = cluster.workers("node-1")
    started = time.monotonic()
    vanish(cluster, worker, "cancel")
    gone = time.monotonic()
    try:
        assert busy(cluster.client)[:2] == (3, 1)
        wait_for(lambda: busy(cluster.client)[:2] == (0, 0), "the grace is over")
        # Its end was somewhere between the two.
        assert time.monotonic() - started >= 5.0
        assert time.monotonic() - gone < 10.0
    finally:
        os.kill(worker, signal.SIGCONT)
    check_idle(cluster)
    answers = {name: cluster.client.attach(key=name).result() for name in NAMES}
    assert {answer.finish for answer in answers.values()} == {"cancelled"}
    assert {name for name in NAMES if answers[name].tokens} == {"decode"}


def test_g2_vanished_at_every_stage_is_kept_when_the_request_says_so(
    pair_of_lanes: Cluster,
) -> None:
    cluster = pair_of_lanes

    def alone(prompt: list[int], max_new: int) -> tuple[int, ...]:
        call = cluster.client.generate(
            cluster.model, prompt, max_new=max_new, temperature=0.0, ignore_eos=True
        )
        return call.result().tokens

    undisturbed = dict.fromkeys(NAMES, alone(PROMPT, 60))
    undisturbed |= {"decode": alone(PROMPT, DECODED), "prefill": alone(LONG, 60)}
    (worker,) = cluster.workers("node-1")
    vanish(cluster, worker, "keep")
    try:
        time.sleep(6.0)  # A grace that must mean nothing here.
        assert busy(cluster.client)[:2] == (3, 1)
    finally:
        os.kill(worker, signal.SIGCONT)
    answers = {name: cluster.client.attach(key=name).result() for name in NAMES}
    assert {answer.finish for answer in answers.values()} == {"length"}
    assert {name: answer.tokens for name, answer in answers.items()} == undisturbed
    check_idle(cluster)
