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
from functools import partial
from typing import Any

from bus.crypto import KeyPair
from bus.ids import GenerationId, ModelName
from bus.keys import new_token, parse_token
from bus.link import LinkLimits
from bus.messages.api import MARK, MAX_BLOB_PART_BYTES, encode_body
from head.core import CorePolicy
from head.kept_tokenizers import NO_TOKENIZERS, TokenizerStore
from tests.harness.blob_rig import BlobsInMemory, blob_of
from tests.harness.memory_head import HeadHost
from tests.harness.memory_network import Network
from tests.harness.memory_node import NodeHost
from tests.harness.memory_parts import MODEL, STEP_S, Disk
from tests.harness.memory_text import text_reply
from tests.harness.memory_watch import Observer

CLIENT = b"client"
#: Virtual seconds of a text process's job.
TEXT_S = 0.001


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
    """A head and its nodes.

    Args:
        seed: decides everything that is left open.
        nodes: how many.
        commit_s: seconds of a commit.
        policy: the head's.
        windows: of the first nodes' workers.
        limits: of all links.
        listening: of the last nodes, how many wait for the head to call.
        watch: sees every event.
        files: whether head and nodes keep files.
        encoder: whether the model makes vectors, and no text.
    """

    def __init__(
        self,
        seed: int = 0,
        nodes: int = 1,
        commit_s: float = 0.002,
        policy: CorePolicy = CorePolicy(),  # noqa: B008 - frozen
        windows: Sequence[int] = (),
        *,
        limits: LinkLimits = LinkLimits(),  # noqa: B008 - frozen
        listening: int = 0,
        watch: Observer | None = None,
        files: bool = False,
        encoder: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.commit_s = commit_s
        self.policy = policy
        self.limits = limits
        self.watch = watch or Observer()
        self.disk = Disk()
        self.files = BlobsInMemory() if files else None
        self.network = Network(self)
        self.encoder = encoder
        #: Paths of model folders that the head has beside that of the decoder.
        self.folders: dict[ModelName, str] = {}
        #: Where the head keeps tokenizers that it fetched, over all its lives.
        self.tokenizers: TokenizerStore = NO_TOKENIZERS
        #: What text processes answer, and how long each job takes them.
        self.text_reply: Callable[[object], object] = text_reply
        self.text_s: Callable[[object], float] = lambda _: TEXT_S
        self.step_s = STEP_S
        self.respawn_s = 0.25
        #: Tokens that a worker makes in one step, and the mark that it puts on them.
        self.burst = 1
        self.mark: Callable[[GenerationId], int] = lambda _: 0
        #: The share of commands that nodes are given twice.
        self.repeat = 0.0
        #: Where all connections come from, as far as an acceptor can tell; None: each by itself.
        self.peer_key: bytes | None = None
        #: Rate and offset of the head's clock.
        self.head_clock = (1.0, 0.0)
        self.streams: dict[bytes, Stream] = {}
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        self._heartbeats = itertools.count(1)
        head_key = KeyPair.generate(self.entropy)
        self.token = parse_token(new_token(head_key.public, self.entropy), source="memory")
        self._head_key = head_key
        self.head: HeadHost | None = None
        self.nodes = [
            NodeHost(self, f"node-{i + 1}", listens=i >= nodes - listening) for i in range(nodes)
        ]
        for node in self.nodes if files else ():
            node.files = BlobsInMemory()
        for node, window in zip(self.nodes, windows, strict=False):
            node.window = window
        self.start()

    def start(self) -> None:
        """Start all processes."""
        self.start_head()
        for node in self.nodes:
            node.start()

    def entropy(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    def next_heartbeat(self) -> int:
        """A number for the next heartbeat, so that none is like another."""
        return next(self._heartbeats)

    # --- harm to frames -----------------------------------------------------------------------

    @property
    def delay_s(self) -> float:
        return self.network.delay_s

    @property
    def drop_probability(self) -> float:
        return self.network.drop

    @drop_probability.setter
    def drop_probability(self, share: float) -> None:
        self.network.drop = share

    @property
    def mangle(self) -> Callable[[str, bytes], list[bytes]] | None:
        """What becomes of a frame on its way, such as "node-1 > head"."""
        return self.network.mangle

    @mangle.setter
    def mangle(self, mangle: Callable[[str, bytes], list[bytes]]) -> None:
        self.network.mangle = mangle

    # --- time ---------------------------------------------------------------------------------

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), action))

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, action = heapq.heappop(self._queue)
        action()
        self.watch.after_event()

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
            self.step()

    # --- the head -----------------------------------------------------------------------------

    def start_head(self) -> None:
        self.head = HeadHost(self, self._head_key, self.token)
        self.watch.head_started(self.head.core.boot)
        self.head.dial()
        self.head.turn()

    def kill_head(self) -> None:
        """kill -9: what was not committed is gone, and so are all connections."""
        head, self.head = self.head, None
        if head is not None:
            head.kill()
            self.watch.head_died()

    # --- the client ---------------------------------------------------------------------------

    def request(self, op: str, **body: Any) -> Stream:
        """Send a request; its stream fills as time passes."""
        request = f"r{next(self._numbers)}".encode()
        stream = self.streams[request] = Stream(request, offset=body.get("offset", 0))
        self.to_head(CLIENT, {"op": op, "id": request, **body})
        return stream

    def generate(self, prompt: str, max_new: int, **body: Any) -> Stream:
        return self.request("generate", model=MODEL, prompt=prompt, max_new=max_new, **body)

    def finish(self, *streams: Stream, limit_s: float = 120.0) -> None:
        self.run_until(lambda: all(stream.closed for stream in streams), limit_s)

    def put(self, data: bytes) -> Stream:
        """Put a file; gives the stream of the request with its last part."""
        blob, part = blob_of(data), MAX_BLOB_PART_BYTES
        for start in range(0, max(len(data), 1), part):
            request = f"r{next(self._numbers)}".encode()
            stream = self.streams[request] = Stream(request)
            keys = {"sha256": blob.sha256, "length": blob.length, "offset": start}
            body = {"op": "put_blob", "id": request, **keys}
            self.to_head(CLIENT, body, data[start : start + part])
        return stream

    def to_head(self, client: bytes, body: dict[str, Any], *blobs: bytes) -> None:
        """Send a client's request to the head that is there when it arrives."""
        frames = [MARK, encode_body(body), *blobs]
        self.after(self.delay_s, partial(self._arrive, client, frames))

    def _arrive(self, client: bytes, frames: list[bytes]) -> None:
        if self.head is not None:
            self.head.client_request(client, frames)

    def to_client(self, client: bytes, body: dict[str, Any]) -> None:
        """A reply arrives at its client."""
        self.watch.replied(client, body)
        if client != CLIENT:
            return
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
