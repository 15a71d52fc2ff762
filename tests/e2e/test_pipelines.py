"""A model over several nodes: what streams say is what the whole model says, whatever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from bench.cluster import Cluster
from bench.stage_cluster import StageCluster
from bus.answer import Answer
from tests.harness.cluster_checks import alive, check_idle, wait_for
from tests.harness.models import stage_folders, toy_model_folder
from tests.harness.stage_streams import Streams, alike, answers, ask, wait_whole

TOKENS = 300
SETTINGS = {"SUPERFLUID_TEXT_PROCESSES": "1", "SUPERFLUID_WORKER_KV_BYTES": str(24 << 20)}
FIRST, LAST = "node-1", "node-2"


@pytest.fixture(scope="module")
def whole() -> list[Answer]:
    """What the whole model says."""
    with Cluster(toy_model_folder().path, threads=1, settings=SETTINGS) as cluster:
        return answers(cluster, TOKENS)


def nodes(*stages: str) -> StageCluster:
    """A fleet of agents named node-1 and so on, each with the given stages of the toy model."""
    first, last = stage_folders(toy_model_folder(), 2)
    folders = {"first": first, "last": last}
    served = {
        f"node-{place}": [folders[name] for name in names.split()]
        for place, names in enumerate(stages, 1)
    }
    return StageCluster(served, settings=SETTINGS)


@pytest.fixture(scope="module")
def fleet() -> Iterator[StageCluster]:
    """One node of each stage; every test leaves both serving."""
    with nodes("first", "last") as made:
        yield made


@pytest.fixture
def pair(fleet: StageCluster) -> StageCluster:
    wait_whole(fleet)
    return fleet


def check(found: list[Answer], whole: list[Answer]) -> None:
    assert [alike(one, other) for one, other in zip(found, whole, strict=True)] == [True] * 8


def test_two_nodes_say_what_the_whole_model_says(pair: StageCluster, whole: list[Answer]) -> None:
    assert pair.chains() == [[FIRST, LAST]]
    check(answers(pair, TOKENS), whole)
    check_idle(pair)


@pytest.mark.parametrize("victim", [FIRST, LAST])
def test_a_worker_of_either_stage_is_killed(
    pair: StageCluster, whole: list[Answer], victim: str
) -> None:
    streams = Streams(pair, TOKENS)
    (worker,) = pair.workers(victim)
    os.kill(worker, signal.SIGKILL)
    check(streams.finish(), whole)
    assert streams.moved >= 1
    assert not alive(worker)


def test_what_is_the_only_one_is_ended_and_started_again(whole: list[Answer]) -> None:
    with nodes("first", "last") as pair:
        for name in (FIRST, LAST):
            streams = Streams(pair, TOKENS)
            pair.kill(name)
            pair.start_node(name)
            check(streams.finish(), whole)
            assert streams.moved >= 1
        for name in (FIRST, LAST):
            streams = Streams(pair, TOKENS)
            assert pair.stop(name) == 0
            pair.start_node(name)
            check(streams.finish(), whole)
        streams = Streams(pair, TOKENS)
        pair.kill("head")
        pair.start_head()
        check(streams.finish(), whole)


def test_a_cancelled_stream_leaves_nothing_behind(pair: StageCluster) -> None:
    streams = Streams(pair, TOKENS)
    for number in range(3):
        call = ask(pair, number, 4000)
        call.next_event(None)
        call.cancel()
    assert [len(answer.tokens) for answer in streams.finish()] == [TOKENS] * 8


def test_another_node_takes_over_a_stage_that_executes(whole: list[Answer]) -> None:
    with nodes("first", "last", "first") as trio:
        for strike in ("worker", "agent"):
            wait_whole(trio)
            streams = Streams(trio, TOKENS)
            ((used, last),) = trio.chains()
            if strike == "agent":
                trio.kill(used)
            else:
                os.kill(trio.workers(used)[0], signal.SIGKILL)
            check(streams.finish(), whole)
            assert streams.moved >= 1
            (other,) = {FIRST, "node-3"} - {used}
            assert (last, trio.chains()) == (LAST, [[other, LAST]])


def test_another_node_takes_over_the_stage_that_drives(whole: list[Answer]) -> None:
    with nodes("first", "last", "last") as trio:
        assert sorted(trio.chains()) == [[FIRST, LAST], [FIRST, "node-3"]]
        streams = Streams(trio, TOKENS)
        wait_for(lambda: trio.node(LAST)["generations"] > 0, "it has streams")
        trio.kill(LAST)
        check(streams.finish(), whole)
        assert streams.moved >= 1
        assert trio.chains() == [[FIRST, "node-3"]]
