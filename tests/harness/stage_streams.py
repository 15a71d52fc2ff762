"""Streams over stages, each beside what the whole model says when nothing happens to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.stage_cluster import StageCluster
from bus.answer import Answer
from bus.call import Call
from bus.client_events import OtherEvent
from tests.harness.cluster_checks import check_idle, wait_for

STREAMS = 8
#: Tokens of each stream that were read before something happens to it.
BEGUN = 5


def options(number: int, tokens: int) -> dict[str, Any]:
    """Of stream `number`: every other one is drawn, and all are to go on bit by bit."""
    draws = {"temperature": 0.9, "seed": 7 + number} if number % 2 else {"temperature": 0.0}
    return {"max_new": tokens, "ignore_eos": True, "exact": True, "logprobs": 2, **draws}


def prompt(number: int) -> list[int]:
    """Token ids below 256; every prompt has another length."""
    return [(31 * number + 7 * place) % 251 + 1 for place in range(12 + 9 * number)]


def ask(cluster: Any, number: int, tokens: int) -> Call:
    """Begin stream `number` on a cluster."""
    call: Call = cluster.client.generate(cluster.model, prompt(number), **options(number, tokens))
    return call


def answers(cluster: Any, tokens: int, numbers: Iterable[int] = range(STREAMS)) -> list[Answer]:
    """Of several streams at once, when nothing happens to them."""
    calls = [ask(cluster, number, tokens) for number in numbers]
    return [call.result() for call in calls]


def alike(one: Answer, other: Answer) -> bool:
    """Whether two answers have the same tokens, with the same log-probabilities, bit by bit."""
    mine, their = ((a.tokens, a.text, a.finish, a.logprobs) for a in (one, other))
    return mine == their


class Streams:
    """Streams at once, of which each has begun."""

    def __init__(
        self, cluster: StageCluster, tokens: int, numbers: Iterable[int] = range(STREAMS)
    ) -> None:
        self._cluster = cluster
        self.moved = 0
        self._calls = [ask(cluster, number, tokens) for number in numbers]
        for call in self._calls:
            self._read(call, BEGUN)

    def finish(self) -> list[Answer]:
        """Read all to their ends; afterwards nothing runs or holds a lane."""
        for call in self._calls:
            self._read(call, tokens=None)
        found = [call.result() for call in self._calls]
        check_idle(self._cluster)
        return found

    def _read(self, call: Call, tokens: int | None) -> None:
        while tokens is None or len(call.tokens) < tokens:
            if (event := call.next_event(None)) is None:
                return
            self.moved += isinstance(event, OtherEvent) and event.type == "moved"


def wait_whole(cluster: StageCluster) -> None:
    """Wait until all that the agents have is served again."""
    wait_for(cluster.is_whole, "every worker is ready, and each last stage has a chain")
