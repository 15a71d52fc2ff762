"""Cases from the field: workers that are killed, and a request that kills them; by number."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.cluster import Cluster
from bus.call import Call, Placed
from bus.client_events import OtherEvent
from bus.errors import RequestKillsWorkers
from tests.e2e.test_cases_workers import only_worker
from tests.e2e.test_hung_worker import FAULTS
from tests.harness.cluster_checks import wait_for
from tests.harness.models import toy_model_folder

PROMPT = list(b"The quick brown fox")
OPTIONS: dict[str, Any] = {"max_new": 1500, "temperature": 0.0, "ignore_eos": True, "exact": True}
#: What workers with the fault do not survive to prefill.
CRASH_ON = 7
POISON = [*b"poison", *[CRASH_ON] * 4]


@contextmanager
def fleet(nodes: int, **settings: str) -> Iterator[Cluster]:
    with Cluster(toy_model_folder().path, threads=1, nodes=nodes, settings=settings) as made:
        yield made


class Reader:
    """A stream and where it was."""

    def __init__(self, made: Cluster, prompt: list[int] = PROMPT) -> None:
        self.call: Call = made.client.generate(made.model, prompt, **OPTIONS)
        self.nodes: list[str] = []
        self.moves: list[OtherEvent] = []

    def read(self, tokens: int) -> None:
        """Until there are so many, and some more that came with them."""
        while len(self.call.tokens) < tokens:
            self._next()

    def finish(self) -> tuple[int, ...]:
        while self._next():
            pass
        return self.call.result().tokens

    def _next(self) -> bool:
        event = self.call.next_event(None)
        if isinstance(event, Placed):
            self.nodes.append(event.node)
        elif isinstance(event, OtherEvent) and event.type == "moved":
            self.moves.append(event)
            self.nodes.append(event.body["to"])
        return event is not None


def names(made: Cluster, nodes: int) -> dict[str, str]:
    """By a node's identity, the name of its process."""
    identities = [node["identity"] for node in made.client.nodes()]
    return {
        i: f"node-{n}"
        for i in identities
        for n in range(1, nodes + 1)
        if i in made.log(f"node-{n}")
    }


@pytest.mark.parametrize("nodes", [1, 2])
def test_g1_a_worker_is_killed_after_20_tokens_and_the_text_is_as_if_it_had_not_been(
    nodes: int,
) -> None:
    with fleet(nodes) as made:
        alone = made.client.generate(made.model, PROMPT, **OPTIONS).result()
        assert len(alone.tokens) == OPTIONS["max_new"]
        reader = Reader(made)
        reader.read(20)
        (first,) = reader.nodes
        name = names(made, nodes)[first]
        worker = only_worker(made, name)
        os.kill(worker, signal.SIGKILL)
        assert reader.finish() == alone.tokens
        assert reader.call.text == alone.text
        # Killed in the middle, not at the end, and gone on by the next worker or the other node.
        (move,) = reader.moves
        assert 20 <= move.body["offset"] < OPTIONS["max_new"]
        assert move.body["exact"] is True
        assert (reader.nodes[1] == first) == (nodes == 1)
        wait_for(lambda: made.workers(name) not in ([], [worker]), "another worker is there")


NEIGHBOURS = 6


def test_g0_a_request_that_crashes_every_worker_costs_two_and_its_neighbours_go_on() -> None:
    path = os.pathsep.join(filter(None, (FAULTS, os.environ.get("PYTHONPATH"))))
    with fleet(3, PYTHONPATH=path, CRASH_ON=str(CRASH_ON)) as made:
        alone = made.client.generate(made.model, PROMPT, **OPTIONS).result().tokens
        before = {name: only_worker(made, name) for name in ("node-1", "node-2", "node-3")}
        neighbours = [Reader(made) for _ in range(NEIGHBOURS)]
        for neighbour in neighbours:
            neighbour.read(5)
        assert len({neighbour.nodes[0] for neighbour in neighbours}) == 3, "one everywhere"
        bad = Reader(made, POISON)
        with pytest.raises(RequestKillsWorkers, match="two workers died") as ended:
            bad.finish()
        assert ended.value.code == "request_kills_workers"
        assert [neighbour.finish() for neighbour in neighbours] == [alone] * NEIGHBOURS
        assert any(neighbour.moves for neighbour in neighbours)
        made.wait_ready()
        after = {name: only_worker(made, name) for name in before}
        assert sum(after[name] != before[name] for name in before) == 2
        logs = [made.log(name) for name in before]
        assert sum(log.count("worker_exited") for log in logs) == 2
        assert made.client.generate(made.model, PROMPT, **OPTIONS).result().tokens == alone
