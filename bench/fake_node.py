"""A node whose agent and link are real and whose worker is made up: it costs a bench no model."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass

from agent.actions import SendToWorker
from agent.core import AgentCore
from bus.agent_records import SendToHead
from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.ids import (
    GenerationId,
    ModelName,
    NodeIdentity,
    NumericsId,
    PackedIds,
    WorkerIncarnation,
    pack_ids,
)
from bus.keys import FleetToken
from bus.link import LinkDown, LinkIdentity, LinkUp, MessageReceived
from bus.messages.link import HeadConfirm
from bus.messages.parts import Finish, Usage
from bus.messages.worker import (
    Accepted,
    Cancel,
    Output,
    OutputRun,
    Pause,
    Ping,
    Pong,
    Ready,
    Resume,
    Submit,
    WorkerStats,
)
from bus.transport.dealer import DealerLink
from bus.transport.loop import Loop

WINDOW_TOKENS = 8192
#: One byte as the toy model has it; every answer is a row of these.
TOKEN = ord("a")


@dataclass(slots=True)
class _Lane:
    total: int
    prompt: int
    made: int = 0
    paused: bool = False


class MadeUpWorker:
    """All lanes in step: each turn gives every generation its next run of tokens.

    Args:
        run_tokens: of a run; the first token goes alone, as a worker sends it.
    """

    def __init__(self, incarnation: WorkerIncarnation, lanes: int, run_tokens: int) -> None:
        self.incarnation = incarnation
        self.run_tokens = run_tokens
        self._lanes = lanes
        self._running: dict[GenerationId, _Lane] = {}

    @property
    def is_running(self) -> bool:
        """Whether a generation may go on."""
        return any(not lane.paused for lane in self._running.values())

    def ready(self) -> Ready:
        return Ready(
            worker=self.incarnation,
            window_tokens=WINDOW_TOKENS,
            lanes=self._lanes,
            kv_total_tokens=self._lanes * WINDOW_TOKENS,
            numerics=NumericsId("made up"),
            tokenizer_digest=0,
            device="none",
            load_s=0.0,
        )

    def receive(self, message: object) -> list[object]:
        """What it answers to a message of its agent."""
        match message:
            case Submit(generation=generation):
                prompt = len(message.context) // 4
                self._running[generation] = _Lane(message.max_new_tokens, prompt)
                return [Accepted(generation=generation)]
            case Cancel(generation=generation):
                lane = self._running.pop(generation, None)
                if lane is not None:
                    return [self._output([_run(generation, lane, 0, "cancelled")])]
            case Pause(generation=generation) if generation in self._running:
                self._running[generation].paused = True
            case Resume(generation=generation) if generation in self._running:
                self._running[generation].paused = False
            case Ping(nonce=nonce):
                return [Pong(nonce=nonce, stats=self._stats())]
        return []

    def step(self) -> list[object]:
        """The next run of every generation that is not paused."""
        runs = []
        for generation, lane in list(self._running.items()):
            if lane.paused:
                continue
            count = min(self.run_tokens if lane.made else 1, lane.total - lane.made)
            ends = lane.made + count == lane.total
            runs.append(_run(generation, lane, count, "length" if ends else ""))
            if ends:
                del self._running[generation]
        return [self._output(runs)] if runs else []

    def _output(self, runs: Iterable[OutputRun]) -> Output:
        return Output(runs=tuple(runs), stats=self._stats())

    def _stats(self) -> WorkerStats:
        return WorkerStats(lanes_used=len(self._running), phase="decode")


def _run(generation: GenerationId, lane: _Lane, count: int, reason: str) -> OutputRun:
    first, lane.made = lane.made, lane.made + count
    usage = Usage(prompt_tokens=lane.prompt, completion_tokens=lane.made)
    return OutputRun(
        generation=generation,
        first_index=first,
        ids=pack_ids([TOKEN] * count) if count else PackedIds(b""),
        finish=Finish(reason=reason, usage=usage) if reason else None,
    )


class FakeNode:
    """One node, joined to a head; its owner turns the loop.

    Args:
        boot: its boot number, above that of its last life.
        key: of all its lives.
    """

    def __init__(
        self,
        loop: Loop,
        address: str,
        token: FleetToken,
        *,
        name: str,
        model: ModelName,
        lanes: int,
        run_tokens: int,
        boot: int,
        key: KeyPair,
    ) -> None:
        self._loop = loop
        self.name = name
        self._model = model
        self._core = AgentCore(NodeIdentity(name), boot, [model])
        incarnation = WorkerIncarnation((boot << 32) | 1)
        self.worker = MadeUpWorker(incarnation, lanes, run_tokens)
        self._core.worker_started(model, incarnation, 0.0)
        self._core.worker_message(model, incarnation, self.worker.ready(), 0.0)
        self._endpoint: Endpoint | None = None
        identity = LinkIdentity(
            role="node",
            name=name,
            static=key,
            tokens=(token,),
            incarnation=boot,
            confirm=self._core.confirm,
        )
        self._link = DealerLink(address, lambda: self._make(identity), rng=random.Random(boot))
        self._link.attach(loop)
        loop.add_timer_source(self._core.next_timeout, self._core.handle_timeout)

    @property
    def is_up(self) -> bool:
        """Whether its link is."""
        return self._link.is_up

    def turn(self, now: float) -> None:
        """Take in what came, work, and send."""
        for event in self._link.events():
            match event:
                case LinkUp(confirm=confirm) if isinstance(confirm, HeadConfirm):
                    self._core.link_up(confirm, now)
                case LinkDown():
                    self._core.link_down(now)
                case MessageReceived(message=message):
                    self._core.link_message(message, now)
        self._tell(self.worker.step(), now)
        while actions := self._core.actions():
            for action in actions:
                if isinstance(action, SendToHead):
                    self._link.send(action.message)
                elif isinstance(action, SendToWorker):
                    self._tell(self.worker.receive(action.message), now)
        self._link.set_busy(self._core.is_busy)
        self._link.flush(now)

    def close(self, now: float, *, cut: bool = False) -> None:
        """End it with a Goodbye, or without a word when it is cut."""
        if cut and self._endpoint is not None:
            self._endpoint.disconnected("it is cut", now)
        self._loop.remove_timer_source(self._core.handle_timeout)
        self._link.close("the bench ends it")

    def _make(self, identity: LinkIdentity) -> Endpoint:
        self._endpoint = Endpoint(
            identity, initiator=True, entropy=os.urandom, heartbeat=self._core.heartbeat
        )
        return self._endpoint

    def _tell(self, messages: Iterable[object], now: float) -> None:
        for message in messages:
            self._core.worker_message(self._model, self.worker.incarnation, message, now)
