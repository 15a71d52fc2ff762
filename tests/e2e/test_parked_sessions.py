"""Sessions that are parked, resumed and forked, over deaths of the head and of nodes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster
from bus.client_events import Ended
from bus.errors import Invalid, NoHead, NoNode, Parked, SessionBusy
from bus.session_handle import Session
from tests.e2e.test_cases_sessions import bare_answer

#: Some blocks of a prefix.
PROMPT = [32 + i % 90 for i in range(200)]
TURN = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture
def pair(toy: Path) -> Iterator[Cluster]:
    with Cluster(toy, threads=1, nodes=2) as made:
        yield made


def begun(cluster: Cluster) -> tuple[Session, list[int]]:
    """A session after its first turn, and what that made."""
    session = cluster.client.new_session(cluster.model)
    session.append(PROMPT)
    return session, list(session.generate(max_new=24, **TURN).result().tokens)


def lane_files(cluster: Cluster, node: str = "node-1") -> list[str]:
    return sorted(path.name for path in (cluster.state / "nodes" / node / "parked").glob("*.lane"))


def until_written(cluster: Cluster, session: Session, node: str = "node-1") -> None:
    """Until the node's file of a session is whole."""
    while lane_files(cluster, node) != [f"{session.id}.lane"]:
        cluster.client.ping()


def kill_node(cluster: Cluster, name: str) -> None:
    """kill -9, and wait until the head has noticed."""
    up = sum(node["state"] == "up" for node in cluster.client.nodes())
    cluster.kill(name)
    while sum(node["state"] == "up" for node in cluster.client.nodes()) == up:
        cluster.client.ping()


def restart_head(cluster: Cluster) -> None:
    """Start the head again, and wait until it answers."""
    cluster.start_head()
    cluster.connect().close()


def node_name(cluster: Cluster, identity: str) -> str:
    """`node-1` or `node-2`."""
    (name,) = [name for name in ("node-1", "node-2") if identity in cluster.log(name)]
    return name


def test_a_parked_session_goes_on_after_its_node_and_the_head_were_killed(
    cluster: Cluster, toy: Path
) -> None:
    session, made = begun(cluster)
    session.park()
    session.park()
    assert session.node_of() is None
    until_written(cluster, session)
    with pytest.raises(Parked, match=f"sfctl session resume {session.id}"):
        session.generate(max_new=1).result()
    with pytest.raises(Parked):
        session.append([65])
    kill_node(cluster, "node-1")
    with pytest.raises(NoNode, match="stays parked"):
        session.resume()
    cluster.kill("head")
    restart_head(cluster)
    cluster.start_node("node-1")
    cluster.wait_ready()
    assert session.info()["state"] == "parked"
    assert lane_files(cluster) == [f"{session.id}.lane"]
    resumed = session.resume()
    assert resumed.node == session.node_of()
    assert (resumed.tokens, resumed.problem) == (224, "")
    # The last token's keys and values were never computed.
    assert resumed.reused == resumed.exact == 223
    assert lane_files(cluster) == []
    answer = session.generate(max_new=20, **TURN).result()
    assert list(answer.tokens) == bare_answer(toy, PROMPT, made, 20)
    assert answer.usage.cached > 200
    with pytest.raises(Invalid, match="not parked"):
        session.resume()


def test_a_session_whose_node_died_while_it_was_parked_resumes_elsewhere(
    pair: Cluster, toy: Path
) -> None:
    session, made = begun(pair)
    identity = session.node_of()
    assert identity is not None
    name = node_name(pair, identity)
    session.park()
    until_written(pair, session, name)
    kill_node(pair, name)
    resumed = session.resume()
    assert resumed.node != identity
    answer = session.generate(max_new=20, **TURN).result()
    assert list(answer.tokens) == bare_answer(toy, PROMPT, made, 20)
    # Its file is nobody's by now, and is gone when the node is back.
    pair.start_node(name)
    pair.wait_ready()
    while lane_files(pair, name):
        pair.client.ping()


def test_park_cancels_the_turn_and_keeps_what_it_made(cluster: Cluster, toy: Path) -> None:
    session = cluster.client.new_session(cluster.model)
    session.append(PROMPT)
    turn = session.generate(max_new=1500, **TURN)
    while len(turn.tokens) < 30:
        turn.next_event(None)
    session.park()
    ended = turn.result()
    assert ended.finish == "cancelled"
    assert session.tokens() == [*PROMPT, *ended.tokens]
    until_written(cluster, session)
    assert session.resume().reused >= len(PROMPT)
    answer = session.generate(max_new=20, **TURN).result()
    assert list(answer.tokens) == bare_answer(toy, PROMPT, list(ended.tokens), 20)


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
def test_head_killed_between_park_and_its_reply(cluster: Cluster, is_read: bool) -> None:
    session, _ = begun(cluster)
    client = cluster.client
    if not is_read:
        os.kill(cluster.pid("head"), signal.SIGSTOP)
    request = client.session.start("session.park", {"session": session.id}, now=client.clock())
    client.flush()
    cluster.kill("head")
    cluster.start_head()
    events = client.session.take(request)
    while not events:
        client.pump(None)
        events = client.session.take(request)
    assert isinstance(events[-1], Ended)
    assert session.info()["state"] == "parked"
    cluster.wait_ready()
    assert session.resume().tokens == 224


def test_a_fork_goes_on_by_itself(cluster: Cluster, toy: Path) -> None:
    session, made = begun(cluster)
    fork, early = session.fork(), session.fork(100)
    running = session.generate(max_new=1500, **TURN)
    while len(running.tokens) < 5:
        running.next_event(None)
    with pytest.raises(SessionBusy):
        session.fork()
    assert list(fork.generate(max_new=20, **TURN).result().tokens) == bare_answer(
        toy, PROMPT, made, 20
    )
    assert list(early.generate(max_new=20, **TURN).result().tokens) == bare_answer(
        toy, PROMPT[:100], [], 20
    )
    running.cancel()
    running.result()
    session.finish()
    assert fork.info()["parent"] == session.id
    assert fork.tokens(limit=224) == [*PROMPT, *made]


def test_a_finished_session_leaves_no_file(cluster: Cluster) -> None:
    session, _ = begun(cluster)
    session.park()
    until_written(cluster, session)
    session.finish()
    while lane_files(cluster):
        cluster.client.ping()
    assert session.info()["state"] == "ended"


def test_a_node_that_parks_nothing_still_gives_sessions_up(toy: Path) -> None:
    with Cluster(toy, threads=1, settings={"SUPERFLUID_WORKER_PARK_BYTES": "0"}) as cluster:
        session, made = begun(cluster)
        session.park()
        resumed = session.resume()
        # What the worker still has in memory is no file's merit, and used all the same.
        assert resumed.tokens == 224
        answer = session.generate(max_new=5, **TURN).result()
        assert list(answer.tokens) == bare_answer(toy, PROMPT, made, 5)
        assert not (cluster.state / "nodes" / "node-1" / "parked").exists()


def test_sessions_from_the_command_line(cluster: Cluster) -> None:
    session, _ = begun(cluster)
    assert cluster.sfctl("session", "park", session.id) == ""
    shown = json.loads(cluster.sfctl("session", "show", session.id, "-o", "json"))
    assert (shown["state"], shown["tokens"]) == ("parked", 224)
    resumed = json.loads(cluster.sfctl("session", "resume", session.id, "-o", "json"))
    assert (resumed["node"], resumed["tokens"]) == (session.node_of(), 224)
    fork = cluster.client.open_session(
        cluster.sfctl("session", "fork", session.id, "--offset", "10").strip()
    )
    assert fork.tokens() == PROMPT[:10]
    cluster.sfctl("session", "finish", session.id)
    assert session.info()["state"] == "ended"


def test_a_resume_is_not_sent_twice(cluster: Cluster) -> None:
    """A head that died may have done it, and a second one would be an error."""
    session, _ = begun(cluster)
    session.park()
    client = cluster.client
    os.kill(cluster.pid("head"), signal.SIGSTOP)
    request = client.session.start("session.resume", {"session": session.id}, now=client.clock())
    client.flush()
    cluster.kill("head")
    restart_head(cluster)
    while not (events := client.session.take(request)):
        client.pump(None)
    assert isinstance(getattr(events[-1], "error", None), NoHead)
    assert session.info()["state"] == "parked"
