"""A whole fleet in memory under virtual time: real cores, real sealed links, no socket, no clock.

    client -- HeadCore -- OutputGate -- Acceptor ~~frames~~ Endpoint -- AgentCore -- made-up worker
                             |
                       Disk (commits take time, survives the head)

One seed decides every delay and every drop, so a failing run is run again by its seed. The fleet
checks while it runs that nothing reached a client before it was durable.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.crypto import KeyPair
from bus.keys import new_token, parse_token
from bus.messages.api import MARK, encode_body
from head.core import CorePolicy
from tests.harness.memory_head import HeadHost
from tests.harness.memory_node import NodeHost
from tests.harness.memory_parts import (
    MODEL,
    Disk,
)

CLIENT = b"client"


@dataclass(slots=True)
class Stream:
    """What a client saw of one request."""

    id: bytes
    #: The cursor that an attach began at.
    offset: int = 0
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    session: str = ""

    @property
    def closed(self) -> bool:
        return self.end is not None or self.error is not None


class MemoryFleet:
    """Args: seed, number of nodes, seconds of a commit, policy, the first nodes' windows."""

    def __init__(
        self,
        seed: int = 0,
        nodes: int = 1,
        commit_s: float = 0.002,
        policy: CorePolicy = CorePolicy(),  # noqa: B008 - frozen
        windows: Sequence[int] = (),
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.commit_s = commit_s
        self.policy = policy
        self.disk = Disk()
        self.delay_s = 0.001
        self.drop_probability = 0.0
        #: What becomes of a frame on its way, such as "node-1 > head".
        self.mangle: Callable[[str, bytes], list[bytes]] = lambda way, frame: [frame]
        self.streams: dict[bytes, Stream] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        head_key = KeyPair.generate(self.entropy)
        self.token = parse_token(new_token(head_key.public, self.entropy), source="memory")
        self._head_key = head_key
        self.nodes = [NodeHost(self, f"node-{i + 1}") for i in range(nodes)]
        for node, window in zip(self.nodes, windows, strict=False):
            node.window = window
        self.head: HeadHost | None = None
        self.start_head()
        for node in self.nodes:
            node.start()

    def entropy(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    # --- time ---------------------------------------------------------------------------------

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), action))

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.run_until(lambda: False, seconds, must=False)

    def run_until(
        self, condition: Callable[[], bool], limit_s: float = 120.0, *, must: bool = True
    ) -> None:
        """Let virtual time pass until a condition holds; at the limit it is an error."""
        until = self.now + limit_s
        while not condition():
            if not self._queue or self._queue[0][0] > until:
                self.now = until
                if must:
                    raise AssertionError(f"not reached within {limit_s} s of virtual time")
                return
            self.now, _, action = heapq.heappop(self._queue)
            action()

    # --- the head -----------------------------------------------------------------------------

    def start_head(self) -> None:
        self.head = HeadHost(self, self._head_key, self.token)
        self.head.turn()

    def kill_head(self) -> None:
        """kill -9: what was not committed is gone, and so are all connections."""
        self.head = None
        for node in self.nodes:
            node.disconnected("the head is gone")

    # --- the client ---------------------------------------------------------------------------

    def request(self, op: str, **body: Any) -> Stream:
        """Send a request; its stream fills as time passes."""
        request = f"r{next(self._numbers)}".encode()
        stream = self.streams[request] = Stream(request, offset=body.get("offset", 0))
        frames = [MARK, encode_body({"op": op, "id": request, **body})]
        self.after(self.delay_s, lambda: self._to_head(frames))
        return stream

    def generate(self, prompt: str, max_new: int, **body: Any) -> Stream:
        return self.request("generate", model=MODEL, prompt=prompt, max_new=max_new, **body)

    def finish(self, *streams: Stream, limit_s: float = 120.0) -> None:
        self.run_until(lambda: all(stream.closed for stream in streams), limit_s)

    def _to_head(self, frames: list[bytes]) -> None:
        if self.head is not None:
            self.head.core.client_request(CLIENT, frames, self.now)
            self.head.turn()

    def to_client(self, body: dict[str, Any]) -> None:
        stream = self.streams[body["id"]]
        if stream.closed:
            raise AssertionError(f"{body} came after the end of {stream.id!r}")
        if body["kind"] == "event":
            self._event(stream, body)
        else:
            stream.end = body if body["kind"] == "end" else None
            stream.error = body["error"] if body["kind"] == "error" else None
            if stream.end is not None:
                stream.text += str(body.get("text", ""))

    def _event(self, stream: Stream, body: dict[str, Any]) -> None:
        stream.events.append(body)
        if body["type"] == "placed":
            stream.session = body["session"]
        if body["type"] != "token":
            return
        expected = stream.offset + len(stream.tokens)
        if body["offset"] != expected:
            raise AssertionError(f"tokens at {body['offset']} where {expected} is next")
        stream.tokens += body["tokens"]
        stream.text += body["text"]
        if stream.session and self.disk.tokens(stream.session) < stream.offset + len(stream.tokens):
            raise AssertionError("a client has tokens that are not durable")
