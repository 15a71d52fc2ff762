"""A head's core with nodes of given speeds, for tests of where requests go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bus.capabilities import CAPABILITIES
from bus.ids import NodeIdentity, WorkerIncarnation
from bus.messages.api import MARK, encode_body
from bus.messages.link import GenerateReq, NodeConfirm, NodeStatus, TokenEvents
from bus.messages.parts import Finish, ModelStatus, Usage
from head.core import CorePolicy
from head.runs import RunPolicy
from head.waiting import WaitingPolicy
from tests.harness.head_bench import CLIENT, TOY, Bench, run
from tests.harness.memory_parts import DIGEST


class PlacingBench(Bench):
    """Generations are counted from 0 in the order in which nodes were asked for them."""

    def __init__(self, policy: str = "load-aware") -> None:
        waiting = WaitingPolicy(placement=policy)
        super().__init__(policy=CorePolicy(runs=RunPolicy(waiting=waiting)))
        self.asked = 0
        self._nodes: dict[int, tuple[int, float, float, int]] = {}

    def join(
        self,
        link: int,
        name: str,
        *,
        lanes: int = 2,
        worker: int = 1,
        prefill: float = 1000.0,
        decode: float = 100.0,
        window: int = 65_536,
    ) -> None:
        """A node's link is up."""
        self._nodes[link] = (lanes, prefill, decode, window)
        confirm = NodeConfirm(
            identity=NodeIdentity(name),
            incarnation=1,
            software="x",
            models=(self._model(link, worker),),
            capabilities=CAPABILITIES,
        )
        self.core.link_up(link, confirm, self.now)
        self.settle()

    def status(self, link: int, worker: int = 1) -> None:
        """A node says that all its lanes are free, but for what the head placed."""
        self.hear(link, NodeStatus(models=(self._model(link, worker),)))

    def request(self, *blocks: int, max_new: int = 100, tail: int = 2, **body: object) -> str:
        """Ask with a prompt of 64-token blocks, each of one id, and a few tokens more.

        Returns:
            The node that it went to; empty while it waits.
        """
        self.asked += 1
        tokens = [block for block in blocks for _ in range(64)] + [self.asked % 100] * tail
        before = len(self.requests())
        asked = {"tokens": tokens, "max_new": max_new, "seed": 1}
        whole = {"op": "generate", "id": b"q%d" % self.asked, "model": TOY, **asked, **body}
        self.core.client_request(CLIENT, [MARK, encode_body(whole)], self.now)
        self.settle()
        return self.where(before)

    def operation(self, op: str, **body: object) -> dict[str, Any]:
        """What the head answers to an operation of one reply.

        Raises:
            ValueError: it answered with an error.
        """
        asked = encode_body({"op": op, "id": b"op", **body})
        self.core.client_request(CLIENT, [MARK, asked], self.now)
        self.settle()
        reply: dict[str, Any] = next(
            each for each in reversed(self.replies) if each.get("id") == b"op"
        )
        if reply["kind"] != "end":
            raise ValueError(f"{op}: {reply['error']}")
        return reply

    def requests(self) -> list[tuple[int, GenerateReq]]:
        """All generations that nodes were asked for, with their links."""
        return [(link, m) for link, m in self.sent if isinstance(m, GenerateReq)]

    def where(self, number: int) -> str:
        """The node that a generation went to, by its number; empty when there is none."""
        found = self.requests()
        if len(found) <= number:
            return ""
        node = self.core.fleet.by_link(found[number][0])
        return node.identity if node is not None else "gone"

    def begin(self, number: int) -> None:
        """A generation's first token comes: its prompt is computed."""
        link, request = self.requests()[number]
        self.hear(link, run(request, 0, 65))

    def end(self, number: int, cached: int = 0) -> None:
        """A generation ends after one token, its node having had so much of the prompt."""
        link, request = self.requests()[number]
        usage = Usage(prompt_tokens=request.prompt_tokens, cached_tokens=cached)
        (begun,) = run(request, 0, 65).runs
        last = replace(begun, finish=Finish(reason="eos", usage=usage))
        self.hear(link, TokenEvents(runs=(last,)))
        self.wait(0.001)

    def _model(self, link: int, worker: int) -> ModelStatus:
        lanes, prefill, decode, window = self._nodes[link]
        return ModelStatus(
            name=TOY,
            phase="ready",
            window_tokens=window,
            lanes_total=lanes,
            tokenizer_digest=DIGEST,
            worker=WorkerIncarnation(worker),
            decode_rate=decode,
            prefill_rate=prefill,
        )
