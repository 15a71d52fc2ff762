"""Every node is started again while streams run on all of them: none fails, and none is changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from bus.client import Client
from bus.client_events import OtherEvent
from tests.e2e.test_cluster import PROMPT, bare_tokens
from tests.harness.cluster_checks import wait_for

NODES = ("node-1", "node-2", "node-3")
#: Streams that run at any moment, one after the other in each of these places.
STREAMS = 6
#: Two nodes hold all streams and one node does not, so each that stays has some.
LANES = 4
TOKENS = 1500


@pytest.fixture(scope="module")
def whole(toy: Path) -> list[int]:
    """The undisturbed answer."""
    (tokens,) = bare_tokens(toy, [PROMPT], TOKENS)
    return tokens


@pytest.fixture
def trio(toy: Path) -> Iterator[Cluster]:
    with Cluster(toy, threads=1, nodes=len(NODES), lanes=LANES) as made:
        yield made


class Load:
    """Streams without an end: as one completes, the next begins."""

    def __init__(self, cluster: Cluster, whole: list[int]) -> None:
        self._model = cluster.model
        self._whole = tuple(whole)
        self._over = threading.Event()
        self.completed = 0
        self.moves: list[Mapping[str, Any]] = []
        self.wrong: list[str] = []
        clients = [cluster.connect() for _ in range(STREAMS)]
        self._threads = [threading.Thread(target=self._run, args=(client,)) for client in clients]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, client: Client) -> None:
        with client:
            while not self._over.is_set():
                self._stream(client)

    def _stream(self, client: Client) -> None:
        try:
            call = client.generate(
                self._model,
                PROMPT,
                max_new=TOKENS,
                temperature=0.0,
                ignore_eos=True,
                exact=True,
            )
            while (event := call.next_event(None)) is not None:
                if isinstance(event, OtherEvent) and event.type == "moved":
                    self.moves.append(event.body)
            answer = call.result()
        except Exception as error:  # noqa: BLE001 - whatever it is, a stream failed
            self.wrong.append(repr(error))
            self._over.set()
            return
        self.completed += 1
        if answer.tokens != self._whole or answer.finish != "length":
            self.wrong.append(
                f"{len(answer.tokens)} tokens, {answer.finish}: not the bare engine's"
            )


def node(cluster: Cluster, name: str) -> dict[str, Any]:
    """What the head says of a node, by its local name; of one that it has not seen, little."""
    log = cluster.log(name)
    named = (n for n in cluster.client.nodes() if f"identity={n['identity']}" in log)
    return next(named, {"state": "unknown", "models": [], "generations": 0})


def serves(cluster: Cluster, name: str, state: str) -> Callable[[], bool]:
    def it_does() -> bool:
        found = node(cluster, name)
        phases = [model["phase"] for model in found["models"]]
        return found["state"] == state and phases == ["ready"]

    return it_does


def has_work(cluster: Cluster, name: str) -> Callable[[], bool]:
    return lambda: node(cluster, name)["generations"] > 0


def restart(cluster: Cluster, name: str) -> int:
    """End the agent as supervisord does, and start it again; gives its exit status."""
    status = cluster.stop(name)
    cluster.start_node(name)
    return status


def test_rolling_restart_of_all_nodes_by_drain_fails_no_stream(
    trio: Cluster, whole: list[int]
) -> None:
    with Load(trio, whole) as load:
        for name in NODES:
            wait_for(has_work(trio, name), f"streams run on {name}")
            trio.sfctl("node", "drain", name, "--wait")
            found = node(trio, name)
            assert (found["state"], found["generations"]) == ("drained", 0)
            assert restart(trio, name) == 0
            wait_for(serves(trio, name, "drained"), f"{name} is back")
            assert node(trio, name)["generations"] == 0
            trio.sfctl("node", "undrain", name)
        wait_for(has_work(trio, NODES[-1]), "the last node has work again")
    assert load.wrong == []
    assert load.completed >= STREAMS
    reasons = {move["reason"] for move in load.moves}
    assert reasons
    assert all(reason.endswith("is drained") for reason in reasons)
    assert all(move["exact"] for move in load.moves)


def test_agents_that_are_just_started_again_fail_no_stream(trio: Cluster, whole: list[int]) -> None:
    with Load(trio, whole) as load:
        for name in NODES:
            wait_for(has_work(trio, name), f"streams run on {name}")
            assert restart(trio, name) == 0
            wait_for(serves(trio, name, "up"), f"{name} is back")
    assert load.wrong == []
    assert load.moves


def test_stream_waits_for_its_only_node_to_be_started_again(toy: Path, whole: list[int]) -> None:
    with Cluster(toy, threads=1) as cluster:
        call = cluster.client.generate(
            cluster.model, PROMPT, max_new=TOKENS, temperature=0.0, ignore_eos=True
        )
        while len(call.tokens) < 5:
            call.next_event(None)
        assert restart(cluster, "node-1") == 0
        offsets = []
        while (event := call.next_event(None)) is not None:
            if isinstance(event, OtherEvent) and event.type == "moved":
                offsets.append(event.body["offset"])
        answer = call.result()
        assert (list(answer.tokens), answer.finish) == (whole, "length")
        # Its new worker had nothing: the prompt and all that was delivered were computed again.
        assert answer.usage.replayed == len(PROMPT) + offsets[0]


def test_stream_on_the_only_node_outlives_its_drain_and_the_next_one_is_refused(
    toy: Path, whole: list[int]
) -> None:
    with Cluster(toy, threads=1) as cluster:
        call = cluster.client.generate(
            cluster.model, PROMPT, max_new=TOKENS, temperature=0.0, ignore_eos=True
        )
        while len(call.tokens) < 5:
            call.next_event(None)
        identity = cluster.client.nodes()[0]["identity"]
        told = cluster.client.operation("node.drain", name=identity)
        assert told["state"] == "draining"
        assert "no node can serve" in told["stays"]
        assert list(call.result().tokens) == whole
        wait_for(lambda: node(cluster, "node-1")["state"] == "drained", "it is drained")
        cluster.kill("head")
        cluster.start_head()
        cluster.connect().close()
        wait_for(serves(cluster, "node-1", "drained"), "a new head knows that it is")
        cluster.sfctl("node", "undrain", "node-1")
        answer = cluster.client.generate(cluster.model, PROMPT, max_new=3).result()
        assert len(answer.tokens) == 3
