"""Streams over real processes go on when a worker, a node or the head is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster
from bus.call import Call
from tests.e2e.test_cluster import PROMPT, bare_tokens

COUNT = 400


@pytest.fixture
def whole(toy: Path) -> list[int]:
    """The undisturbed answer."""
    (tokens,) = bare_tokens(toy, [PROMPT], COUNT)
    return tokens


@pytest.fixture
def pair(toy: Path) -> Iterator[Cluster]:
    with Cluster(toy, threads=1, nodes=2) as made:
        yield made


def begin(cluster: Cluster) -> Call:
    """A stream that has some of its tokens."""
    call = cluster.client.generate(
        cluster.model, PROMPT, max_new=COUNT, temperature=0.0, ignore_eos=True, key="survivor"
    )
    while len(call.tokens) < 5:
        call.next_event(None)
    return call


def holder(cluster: Cluster) -> str:
    """The node that runs the one generation there is."""
    (identity,) = (n["identity"] for n in cluster.client.nodes() if n["generations"])
    names = [name for name in ("node-1", "node-2") if identity in cluster.log(name)]
    assert len(names) == 1
    return names[0]


def test_g1_stream_goes_on_with_the_next_worker_of_its_only_node(
    toy: Path, whole: list[int]
) -> None:
    with Cluster(toy, threads=1) as cluster:
        call = begin(cluster)
        (worker,) = cluster.workers("node-1")
        os.kill(worker, signal.SIGKILL)
        answer = call.result()
        assert answer.finish == "length"
        assert len(answer.tokens) == COUNT
        assert list(answer.tokens[: len(whole)]) == whole


def test_stream_of_a_killed_agent_goes_on_on_the_other_node(
    pair: Cluster, whole: list[int]
) -> None:
    call = begin(pair)
    pair.kill(holder(pair))
    answer = call.result()
    assert len(answer.tokens) == COUNT
    assert list(answer.tokens[: len(whole)]) == whole


def test_stream_outlives_a_killed_head_and_goes_on_where_it_was(
    toy: Path, whole: list[int]
) -> None:
    with Cluster(toy, threads=1) as cluster:
        call = begin(cluster)
        cluster.kill("head")
        cluster.start_head()
        answer = call.result()
        assert len(answer.tokens) == COUNT
        assert list(answer.tokens[: len(whole)]) == whole


def test_session_of_several_turns_equals_the_bare_engine(toy: Path) -> None:
    with Cluster(toy, threads=1) as cluster:
        client = cluster.client
        session = client.operation("session.create", model=cluster.model)["session"]
        context: list[int] = []
        for text in (PROMPT, list(b" and so on")):
            client.operation("session.append", session=session, tokens=text)
            context += text
            turn = client.session_generate(session, max_new=20, temperature=0.0).result()
            assert [list(turn.tokens)] == bare_tokens(toy, [context], 20)
            context += turn.tokens
        seen = client.operation("session.get", session=session, limit=1000)
        assert seen["ids"] == context
        client.operation("session.finish", session=session)
