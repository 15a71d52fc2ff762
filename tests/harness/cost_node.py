"""A node of a cost model, in virtual time: what a prompt and an answer take there.

It prefills one prompt at a time, without what its cache holds of it, and decodes all its lanes
together: a lane's rate falls by a twentieth with each other lane, and to half while a prompt is
prefilled. A prompt begins when there is a lane for it and KV for all that it may come to. Its
status has the rates that it had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent.worker.prefix_cache import BLOCK_TOKENS, prefix_hashes, reusable_blocks
from bus.capabilities import CAPABILITIES
from bus.ids import ModelName, NodeIdentity, SessionId, WorkerIncarnation, pack_ids, unpack_ids
from bus.messages.link import AppendContent, GenerateReq, NodeConfirm, TokenEvents
from bus.messages.parts import Finish, ModelStatus, TokenRun, Usage
from tests.harness.memory_parts import DIGEST

TOY = ModelName("toy")
#: Of a node of speed 1: tokens/s of prefill, and of one lane alone.
PREFILL_RATE, DECODE_RATE = 1000.0, 25.0
LANES = 4
#: The longest context; each lane has KV for one.
WINDOW = 4096
KV_TOKENS = LANES * WINDOW


class Clock(Protocol):
    """Virtual time."""

    now: float

    def at(self, due: float, act: Callable[[], None]) -> None:
        """Do something at a time."""


@dataclass(slots=True)
class _Lane:
    request: GenerateReq
    cached: int
    left: float


class CostNode:
    """One node; driven by the fleet's clock.

    Args:
        clock: the fleet's.
        hear: takes what it says to the head.
        speed: how many times as fast as a node of speed 1.
        cache_tokens: tokens that its prefix cache holds.
    """

    def __init__(
        self, clock: Clock, hear: Callable[[object], None], speed: float, cache_tokens: int
    ) -> None:
        self._clock, self._hear, self._speed = clock, hear, speed
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
            window_tokens=WINDOW,
            lanes_total=LANES,
            lanes_used=len(self._lanes) + (self._prefilling is not None),
            queued=len(self._queue),
            kv_live_tokens=self._live_tokens(),
            kv_total_tokens=KV_TOKENS,
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

    def _has_room(self, request: GenerateReq) -> bool:
        """Whether a lane is free, and the KV that the request may come to need."""
        needed = request.prompt_tokens + request.max_new_tokens
        return len(self._lanes) < LANES and self._live_tokens() + needed <= KV_TOKENS

    def _live_tokens(self) -> int:
        """KV of what is computed now, at its longest."""
        running = [lane.request for lane in self._lanes]
        running += [self._prefilling] if self._prefilling is not None else []
        return sum(request.prompt_tokens + request.max_new_tokens for request in running)

    def _rate(self) -> float:
        """Tokens/s of each lane."""
        alone = DECODE_RATE * self._speed / (1 + 0.05 * max(len(self._lanes) - 1, 0))
        return alone / 2 if self._prefilling is not None else alone

    def _advance(self) -> None:
        """Decode until now."""
        passed_s, self._since_s = self._clock.now - self._since_s, self._clock.now
        for lane in self._lanes:
            lane.left -= passed_s * self._rate()

    def _go_on(self) -> None:
        self._advance()
        if self._prefilling is None and self._queue and self._has_room(self._queue[0]):
            self._prefilling = request = self._queue.pop(0)
            cached = self._cached(request)
            todo = len(self._contexts[request.session]) // 4 - cached
            due = self._clock.now + todo / (PREFILL_RATE * self._speed)
            self._clock.at(due, lambda: self._prefilled(request, cached))
        self._plan += 1
        if self._lanes:
            self._measured = 0.75 * self._measured + 0.25 * self._rate()
            plan, left = self._plan, max(min(lane.left for lane in self._lanes), 0.0)
            self._clock.at(self._clock.now + left / self._rate(), lambda: self._ended(plan))

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
            del self._contexts[request.session]
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
        self._hear(TokenEvents(runs=(run,)))


def confirm_of(number: int, model: ModelStatus) -> NodeConfirm:
    """What a node says when its link is up."""
    return NodeConfirm(
        identity=NodeIdentity(f"node-{number:03d}"),
        incarnation=1,
        software="x",
        models=(model,),
        capabilities=CAPABILITIES,
    )
