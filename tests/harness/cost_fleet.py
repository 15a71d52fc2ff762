"""A head's real core against nodes of a cost model, in virtual time: how soon answers come.

Nodes report their state once a second. Runs with equal seeds are equal.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from bus.messages.api import MARK, encode_body
from bus.messages.link import NodeStatus
from head.core import CorePolicy, HeadCore
from head.effects import Reply, SendLink, TextJob
from head.rows import StoredState
from head.runs import RunPolicy
from head.waiting import WaitingPolicy
from tests.harness.cost_node import TOY, CostNode, confirm_of
from tests.harness.memory_parts import text_reply

WIRE_S = 0.0005
#: Each connection has few open requests.
CLIENTS = 500

#: Token ids of a prompt, and how many tokens are asked for.
Ask = Callable[[random.Random], tuple[list[int], int]]


class CostFleet:
    """A head with nodes of these speeds.

    Args:
        policy: where requests go.
        speeds: of each node; of speed 1 it computes `PREFILL_RATE` and `DECODE_RATE` tokens/s.
        cache_tokens: tokens that a node's prefix cache holds.
    """

    def __init__(self, policy: str, speeds: Sequence[float], cache_tokens: int = 20_000) -> None:
        self.now = 0.0
        self.core = head_core(policy)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._asked: dict[int, float] = {}
        #: Seconds from a request to its first token, and to its end, by number.
        self.first_s: dict[int, float] = {}
        self.end_s: dict[int, float] = {}
        self.core.models_found({TOY: "/toy"}, 0.0)
        self._nodes = [
            CostNode(self, partial(self._hear, link), speed, cache_tokens)
            for link, speed in enumerate(speeds)
        ]
        self._settle()
        for link, node in enumerate(self._nodes):
            self.core.link_up(link, confirm_of(link, node.status()), 0.0)
            self._settle()
            self.at(1.0 + link / len(speeds), partial(self._beat, link))

    def load(self, rate: float, requests: int, ask: Ask, seed: int) -> None:
        """Let requests come, `rate` a second at random times, and run until all have ended."""
        chance, due = random.Random(seed), 2.0
        for number in range(requests):
            due += chance.expovariate(rate)
            tokens, max_new = ask(chance)
            self.at(due, partial(self.request, number, tokens, max_new))
        self.run(requests)

    def run(self, requests: int) -> None:
        """Let time pass until so many requests have ended."""
        while len(self.end_s) < requests:
            self._step()

    def at(self, due: float, act: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, (due, next(self._order), act))

    def request(self, number: int, tokens: list[int], max_new: int) -> None:
        """A request comes now."""
        self._asked[number] = self.now
        body = {"op": "generate", "id": number.to_bytes(4, "big"), "model": TOY, "seed": 1}
        asked = encode_body({**body, "tokens": tokens, "max_new": max_new, "credit": 1000})
        self.core.client_request(b"c%d" % (number % CLIENTS), [MARK, asked], self.now)
        self._settle()

    def _hear(self, link: int, message: object) -> None:
        self.core.link_message(link, message, self.now)
        self._settle()

    def _beat(self, link: int) -> None:
        self._hear(link, NodeStatus(models=(self._nodes[link].status(),)))
        self.at(self.now + 1.0, partial(self._beat, link))

    def _step(self) -> None:
        timeout = self.core.next_timeout()
        if timeout is not None and timeout <= self._events[0][0]:
            self.now = max(self.now, timeout)
            self.core.handle_timeout(self.now)
            self._settle()
            return
        self.now, _, act = heapq.heappop(self._events)
        act()

    def _settle(self) -> None:
        while (effects := self.core.effects()).outputs or effects.persist:
            for tagged in effects.outputs:
                match tagged.output:
                    case SendLink(link=link, message=message):
                        self.at(self.now + WIRE_S, partial(self._nodes[link].receive, message))
                    case Reply(body=body):
                        self._replied(body)
                    case TextJob(message=job):
                        self.core.text_reply(text_reply(job), self.now)

    def _replied(self, body: dict[str, Any]) -> None:
        if body["kind"] == "error":
            raise ValueError(f"a request failed: {body['error']}")
        number = int.from_bytes(body["id"], "big")
        passed_s = self.now - self._asked[number]
        if body.get("type") == "token":
            self.first_s.setdefault(number, passed_s)
        elif body["kind"] == "end":
            self.end_s[number] = passed_s


def head_core(policy: str = "load-aware") -> HeadCore:
    """A head's core that keeps nothing of what has ended, and refuses no request for its queue."""
    waiting = WaitingPolicy(placement=policy, queue_limit=1 << 20)
    return HeadCore(
        CorePolicy(retain_s=0.0, runs=RunPolicy(waiting=waiting)),
        StoredState(boot=1, head_id="h", answers=()),
        entropy=bytes,
        now=0.0,
        wall_s=1e9,
    )
