"""A head's real core against nodes of a cost model, in virtual time: how soon answers come.

A node prefills one prompt at a time, without what its cache holds of it, and decodes all its lanes
together: a lane's rate falls by a twentieth with each other lane, and to half while a prompt is
prefilled. Nodes report the rates that they had, once a second. Runs with equal seeds are equal.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from agent.worker.prefix_cache import BLOCK_TOKENS, prefix_hashes, reusable_blocks
from bus.capabilities import CAPABILITIES
from bus.ids import ModelName, NodeIdentity, SessionId, WorkerIncarnation, pack_ids, unpack_ids
from bus.messages.api import MARK, encode_body
from bus.messages.link import AppendContent, GenerateReq, NodeConfirm, NodeStatus, TokenEvents
from bus.messages.parts import Finish, ModelStatus, TokenRun, Usage
from head.core import CorePolicy, HeadCore
from head.effects import Reply, SendLink, TextJob
from head.rows import StoredState
from head.runs import RunPolicy
from head.waiting import WaitingPolicy
from tests.harness.memory_parts import DIGEST, text_reply

TOY = ModelName("toy")
#: Of a node of speed 1: tokens/s of prefill, and of one lane alone.
PREFILL_RATE, DECODE_RATE = 1000.0, 25.0
LANES = 4
WIRE_S = 0.0005

#: Token ids of a prompt, and how many tokens are asked for.
Ask = Callable[[random.Random], tuple[list[int], int]]


@dataclass(slots=True)
class _Lane:
    request: GenerateReq
    cached: int
    left: float


class CostNode:
    """One node of a speed; driven by the fleet's clock."""

    def __init__(self, fleet: CostFleet, link: int, speed: float, cache_tokens: int) -> None:
        self._fleet, self._link, self._speed = fleet, link, speed
        self._cache_blocks = cache_tokens // BLOCK_TOKENS
        self._cache: dict[bytes, None] = {}
        self._contexts: dict[SessionId, bytes] = {}
        self._queue: list[GenerateReq] = []
        self._prefilling: GenerateReq | None = None
        self._lanes: list[_Lane] = []
        self._since_s = 0.0
        self._plan = 0
        self._measured = DECODE_RATE * speed

    def status(self) -> ModelStatus:
        return ModelStatus(
            name=TOY,
            phase="ready",
            window_tokens=65_536,
            lanes_total=LANES,
            lanes_used=len(self._lanes) + (self._prefilling is not None),
            queued=len(self._queue),
            tokenizer_digest=DIGEST,
            worker=WorkerIncarnation(1),
            decode_rate=self._measured,
            prefill_rate=PREFILL_RATE * self._speed,
        )

    def receive(self, message: object) -> None:
        match message:
            case AppendContent():
                before = self._contexts.get(message.session, b"")[: 4 * message.base_tokens]
                self._contexts[message.session] = before + message.ids
            case GenerateReq():
                self._queue.append(message)
                self._go_on()

    def _rate(self) -> float:
        """Tokens/s of each lane."""
        alone = DECODE_RATE * self._speed / (1 + 0.05 * max(len(self._lanes) - 1, 0))
        return alone / 2 if self._prefilling is not None else alone

    def _advance(self) -> None:
        """Decode until now."""
        passed_s, self._since_s = self._fleet.now - self._since_s, self._fleet.now
        for lane in self._lanes:
            lane.left -= passed_s * self._rate()

    def _go_on(self) -> None:
        self._advance()
        if self._prefilling is None and self._queue and len(self._lanes) < LANES:
            self._prefilling = request = self._queue.pop(0)
            cached = self._cached(request)
            todo = len(self._contexts[request.session]) // 4 - cached
            due = self._fleet.now + todo / (PREFILL_RATE * self._speed)
            self._fleet.at(due, lambda: self._prefilled(request, cached))
        self._plan += 1
        if self._lanes:
            self._measured = 0.75 * self._measured + 0.25 * self._rate()
            plan, left = self._plan, max(min(lane.left for lane in self._lanes), 0.0)
            self._fleet.at(self._fleet.now + left / self._rate(), lambda: self._ended(plan))

    def _hashes(self, request: GenerateReq) -> list[bytes]:
        return prefix_hashes(b"seed", unpack_ids(self._contexts[request.session]))

    def _cached(self, request: GenerateReq) -> int:
        hashes = self._hashes(request)
        limit = reusable_blocks(len(self._contexts[request.session]) // 4)
        blocks = 0
        while blocks < limit and hashes[blocks] in self._cache:
            blocks += 1
        return blocks * BLOCK_TOKENS

    def _prefilled(self, request: GenerateReq, cached: int) -> None:
        self._advance()
        self._prefilling = None
        for block in reversed(self._hashes(request)):
            self._cache.pop(block, None)
            self._cache[block] = None
        while len(self._cache) > self._cache_blocks:
            del self._cache[next(iter(self._cache))]
        self._lanes.append(_Lane(request, cached, request.max_new_tokens - 1.0))
        self._say(request, 0, 1, None)
        self._go_on()

    def _ended(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        over = [lane for lane in self._lanes if lane.left <= 1e-6]
        self._lanes = [lane for lane in self._lanes if lane.left > 1e-6]
        for lane in over:
            request = lane.request
            usage = Usage(prompt_tokens=request.prompt_tokens, cached_tokens=lane.cached)
            finish = Finish(reason="length", usage=usage)
            self._say(request, 1, request.max_new_tokens - 1, finish)
        self._go_on()

    def _say(self, request: GenerateReq, first: int, tokens: int, finish: Finish | None) -> None:
        run = TokenRun(
            session=request.session,
            epoch=request.epoch,
            generation=request.generation,
            first_seq=first,
            ids=pack_ids([65] * tokens),
            finish=finish,
        )
        self._fleet.hear(self._link, TokenEvents(runs=(run,)))


class CostFleet:
    """A head with nodes of these speeds."""

    def __init__(self, policy: str, speeds: Sequence[float], cache_tokens: int = 20_000) -> None:
        self.now = 0.0
        waiting = WaitingPolicy(placement=policy, queue_limit=1 << 20)
        self.core = HeadCore(
            CorePolicy(retain_s=0.0, runs=RunPolicy(waiting=waiting)),
            StoredState(boot=1, head_id="h", answers=()),
            entropy=bytes,
            now=0.0,
            wall_s=1e9,
        )
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._asked: dict[int, float] = {}
        #: Seconds from a request to its first token, and to its end, by number.
        self.first_s: dict[int, float] = {}
        self.end_s: dict[int, float] = {}
        self.core.models_found({TOY: "/toy"}, 0.0)
        self._nodes = [CostNode(self, n, speed, cache_tokens) for n, speed in enumerate(speeds)]
        self._settle()
        for link, node in enumerate(self._nodes):
            self._join(link, node)
            self.at(1.0 + link / len(speeds), partial(self._beat, link))

    def load(self, rate: float, requests: int, ask: Ask, seed: int) -> None:
        """Let requests come, `rate` a second at random times, and run until all have ended."""
        chance, due = random.Random(seed), 2.0
        for number in range(requests):
            due += chance.expovariate(rate)
            tokens, max_new = ask(chance)
            self.at(due, partial(self._ask, number, tokens, max_new))
        while len(self.end_s) < requests:
            self._step()

    def at(self, due: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (due, next(self._order), act))

    def hear(self, link: int, message: object) -> None:
        self.core.link_message(link, message, self.now)
        self._settle()

    def _join(self, link: int, node: CostNode) -> None:
        confirm = NodeConfirm(
            identity=NodeIdentity(f"node-{link:03d}"),
            incarnation=1,
            software="x",
            models=(node.status(),),
            capabilities=CAPABILITIES,
        )
        self.core.link_up(link, confirm, 0.0)
        self._settle()

    def _beat(self, link: int) -> None:
        self.hear(link, NodeStatus(models=(self._nodes[link].status(),)))
        self.at(self.now + 1.0, partial(self._beat, link))

    def _ask(self, number: int, tokens: list[int], max_new: int) -> None:
        self._asked[number] = self.now
        body = {"op": "generate", "id": number.to_bytes(4, "big"), "model": TOY, "seed": 1}
        asked = encode_body({**body, "tokens": tokens, "max_new": max_new, "credit": 1000})
        # Each connection has few open requests.
        self.core.client_request(b"c%d" % (number % 500), [MARK, asked], self.now)
        self._settle()

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
