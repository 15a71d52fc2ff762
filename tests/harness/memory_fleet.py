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

from agent.actions import SendToWorker
from agent.core import AgentCore
from bus.acceptor import Acceptor
from bus.agent_records import SendToHead
from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.ids import NodeIdentity, WorkerIncarnation
from bus.keys import FleetToken, new_token, parse_token
from bus.link import LinkDown, LinkIdentity, LinkUp, MessageReceived
from bus.messages.api import MARK, encode_body
from bus.messages.link import HeadConfirm, WatermarkAck
from head.core import CorePolicy, HeadCore
from head.effects import CloseLink, Output, Persist, Reply, SendLink, TextJob
from head.gate import OutputGate
from tests.harness.memory_parts import (
    MODEL,
    WINDOW,
    Disk,
    MadeUpWorker,
    expected_tokens,
    text_reply,
)

CLIENT = b"client"
STEP_S = 0.02
TURN_S = 0.001


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


class HeadHost:
    """Drives the head's core, its gate and its links, as head/server.py does with sockets."""

    def __init__(self, fleet: MemoryFleet, key: KeyPair, token: FleetToken) -> None:
        self.fleet = fleet
        stored = fleet.disk.start()
        self.core = HeadCore(
            fleet.policy, stored, entropy=fleet.entropy, now=fleet.now, wall_s=1e9 + fleet.now
        )
        self.gate = OutputGate()
        identity = LinkIdentity(
            role="head",
            name=stored.head_id,
            static=key,
            tokens=(token,),
            incarnation=stored.boot,
            confirm=lambda: HeadConfirm(identity="head", boot=stored.boot, software="test"),
        )
        self.acceptor = Acceptor(identity, entropy=fleet.entropy)
        self._links: dict[bytes, int] = {}
        self._addresses: dict[int, bytes] = {}
        self._link_numbers = itertools.count(1)
        self._timer_at: float | None = None
        self.core.models_found({MODEL: "/models/toy"}, fleet.now)

    @property
    def alive(self) -> bool:
        return self.fleet.head is self

    def receive(self, address: bytes, frame: bytes) -> None:
        if self.alive:
            self.acceptor.receive(address, frame, self.fleet.now)
            self.turn()

    def disconnected(self, address: bytes) -> None:
        if self.alive:
            self.acceptor.disconnected(address, "cut", self.fleet.now)
            self.turn()

    def turn(self) -> None:
        """What the loop does at the end of every turn."""
        for address, event in self.acceptor.events():
            self._link_event(address, event)
        persist, released = self.gate.admit(self.core.effects())
        if persist is not None:
            self.fleet.after(self.fleet.commit_s, lambda: self._committed(persist))
        self._release(released)
        self._send_frames()
        self._arm()

    def _link_event(self, address: bytes, event: object) -> None:
        now = self.fleet.now
        match event:
            case LinkUp(confirm=confirm):
                link = next(self._link_numbers)
                self._links[address], self._addresses[link] = link, address
                self.core.link_up(link, confirm, now)  # type: ignore[arg-type]
            case LinkDown(reason=reason):
                link = self._links.pop(address)
                del self._addresses[link]
                self.core.link_down(link, reason, now)
            case MessageReceived(message=message):
                if address in self._links:
                    self.core.link_message(self._links[address], message, now)

    def _committed(self, persist: Persist) -> None:
        if self.alive:
            self.fleet.disk.commit(persist)
            self._release(self.gate.durable(persist.lsn))
            self.turn()

    def _release(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case SendLink(link=link, message=message):
                    self._check_ack(message)
                    address = self._addresses.get(link)
                    endpoint = self.acceptor.endpoint(address) if address else None
                    if endpoint is not None:
                        endpoint.send(message)
                case Reply(body=body):
                    self.fleet.after(self.fleet.delay_s, lambda b=body: self.fleet.to_client(b))  # type: ignore[misc]
                case CloseLink(link=link, reason=reason):
                    address = self._addresses.get(link)
                    endpoint = self.acceptor.endpoint(address) if address else None
                    if endpoint is not None:
                        endpoint.close(reason, self.fleet.now)
                case TextJob(message=job):
                    self.fleet.after(0.001, lambda j=job: self._text_done(j))  # type: ignore[misc]

    def _check_ack(self, message: object) -> None:
        if (
            isinstance(message, WatermarkAck)
            and self.gate.durable_lsn != self.fleet.disk.durable_lsn
        ):
            raise AssertionError("acknowledged before the commit")

    def _text_done(self, job: object) -> None:
        if self.alive:
            self.core.text_reply(text_reply(job), self.fleet.now)
            self.turn()

    def _send_frames(self) -> None:
        while frames := self.acceptor.frames_to_send():
            for address, frame in frames:
                for node in self.fleet.nodes:
                    if node.address == address:
                        node.to_node(frame)

    def _arm(self) -> None:
        times = [self.core.next_timeout(), self.acceptor.next_timeout()]
        due = min((time for time in times if time is not None), default=None)
        if due is None or (self._timer_at is not None and self._timer_at <= due):
            return
        self._timer_at = due
        self.fleet.after(max(due - self.fleet.now, TURN_S), self._timeout)

    def _timeout(self) -> None:
        if self.alive:
            self._timer_at = None
            self.acceptor.handle_timeout(self.fleet.now)
            self.core.handle_timeout(self.fleet.now)
            self.turn()


class NodeHost:
    """Drives one agent's core, link and worker, as agent/node.py does with sockets and processes.

    Every connection has an address of its own; what was on its way when it was cut is gone.
    """

    def __init__(self, fleet: MemoryFleet, name: str) -> None:
        self.fleet = fleet
        self.name = name
        self.key = KeyPair.generate(fleet.entropy)
        self.boot = 0
        self.incarnations = itertools.count(1)
        self.address = b""
        self.cut = False
        self.core: AgentCore | None = None
        self.endpoint: Endpoint | None = None
        self.worker: MadeUpWorker | None = None
        self.window = WINDOW
        #: What its workers answer to a prompt: so many tokens.
        self.answer = expected_tokens
        self._timer_at: float | None = None
        self._last_arrival = {"head": 0.0, "node": 0.0}

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        self.boot += 1
        core = self.core = AgentCore(NodeIdentity(self.name), self.boot, [MODEL])
        identity = LinkIdentity(
            role="node",
            name=self.name,
            static=self.key,
            tokens=(self.fleet.token,),
            incarnation=self.boot,
            confirm=core.confirm,
        )
        self.endpoint = Endpoint(
            identity, initiator=True, entropy=self.fleet.entropy, heartbeat=core.heartbeat
        )
        self._timer_at = None
        self._start_worker()
        self.connect()

    def kill(self) -> None:
        """kill -9 of the agent; its worker dies with it."""
        self.core = self.endpoint = self.worker = None
        self._drop_connection()

    def kill_worker(self, respawn_s: float = 0.25) -> None:
        if self.worker is None or self.core is None:
            return
        incarnation, self.worker = self.worker.incarnation, None
        self.core.worker_exited(MODEL, incarnation, -9, respawn_s, self.fleet.now)
        self.turn()
        core = self.core
        self.fleet.after(respawn_s, lambda: self._respawn(core))

    def _respawn(self, core: AgentCore) -> None:
        if self.core is core:
            self._start_worker()
            self.turn()

    def _start_worker(self) -> None:
        if self.core is None:
            return
        incarnation = WorkerIncarnation((self.boot << 32) | next(self.incarnations))
        made = self.worker = MadeUpWorker(incarnation, window=self.window, answer=self.answer)
        self.core.worker_started(MODEL, incarnation, self.fleet.now)
        self._from_worker(made, made.ready())
        self.fleet.after(STEP_S, lambda: self._step(made))

    def _step(self, made: MadeUpWorker) -> None:
        if self.worker is made:
            for message in made.step():
                self._from_worker(made, message)
            self.turn()
            self.fleet.after(STEP_S, lambda: self._step(made))

    def _from_worker(self, made: MadeUpWorker, message: object) -> None:
        if self.core is not None and self.worker is made:
            self.core.worker_message(MODEL, made.incarnation, message, self.fleet.now)

    # --- the connection -----------------------------------------------------------------------

    def connect(self) -> None:
        """Connect when a head is there and the cable is whole, else try again."""
        if self.endpoint is None or self.address:
            return
        if self.fleet.head is None or self.cut:
            self.fleet.after(0.2, self.connect)
            return
        self.address = f"{self.name}/{next(self.fleet._numbers)}".encode()
        self._last_arrival = {"head": 0.0, "node": 0.0}
        self.endpoint.connect(self.fleet.now)
        self.turn()

    def cut_connection(self) -> None:
        """The cable breaks; both sides notice."""
        self.disconnected("cut")

    def disconnected(self, reason: str) -> None:
        self._drop_connection()
        if self.endpoint is not None:
            self.endpoint.disconnected(reason, self.fleet.now)
            self.turn()
            self.fleet.after(0.2, self.connect)

    def _drop_connection(self) -> None:
        address, self.address = self.address, b""
        if self.fleet.head is not None and address:
            self.fleet.head.disconnected(address)

    def to_node(self, frame: bytes) -> None:
        for part in self.fleet.mangle(f"head > {self.name}", frame):
            self._carry("node", partial(self._receive, part))

    def _to_head(self, frame: bytes) -> None:
        head, address = self.fleet.head, self.address
        if head is not None:
            for part in self.fleet.mangle(f"{self.name} > head", frame):
                self._carry("head", partial(head.receive, address, part))

    def _carry(self, to: str, deliver: Callable[[], None]) -> None:
        """Frames of a connection stay in order; a dropped one is a fault that links must catch."""
        if self.fleet.rng.random() < self.fleet.drop_probability:
            return
        address = self.address
        delay_s = self.fleet.delay_s * self.fleet.rng.uniform(0.5, 2.0)
        at = max(self.fleet.now + delay_s, self._last_arrival[to])
        self._last_arrival[to] = at

        def arrive() -> None:
            if self.address == address:
                deliver()

        self.fleet.after(at - self.fleet.now, arrive)

    def _receive(self, frame: bytes) -> None:
        if self.endpoint is not None:
            self.endpoint.receive(frame, self.fleet.now)
            self.turn()

    # --- the loop -----------------------------------------------------------------------------

    def turn(self) -> None:
        if self.core is None or self.endpoint is None:
            return
        lost = False
        for event in self.endpoint.events():
            match event:
                case LinkUp():
                    self.core.link_up(self.fleet.now)
                case LinkDown():
                    self.core.link_down(self.fleet.now)
                    lost = True
                case MessageReceived(message=message):
                    self.core.link_message(message, self.fleet.now)
        self._act(self.core, self.endpoint)
        self.core.validate_state()
        while self.address and (frame := self.endpoint.next_frame()) is not None:
            self._to_head(frame)
        self._arm(self.core, self.endpoint)
        if lost and self.address:
            self.disconnected("made again")

    def _act(self, core: AgentCore, endpoint: Endpoint) -> None:
        while actions := core.actions():
            for action in actions:
                if isinstance(action, SendToHead):
                    endpoint.send(action.message)
                elif isinstance(action, SendToWorker) and self.worker is not None:
                    made = self.worker
                    for message in made.receive(action.message):
                        self._from_worker(made, message)
        endpoint.set_busy(core.is_busy)

    def _arm(self, core: AgentCore, endpoint: Endpoint) -> None:
        times = [core.next_timeout(), endpoint.next_timeout()]
        due = min((time for time in times if time is not None), default=None)
        if due is None or (self._timer_at is not None and self._timer_at <= due):
            return
        self._timer_at = due
        self.fleet.after(max(due - self.fleet.now, TURN_S), lambda: self._timeout(core))

    def _timeout(self, core: AgentCore) -> None:
        if self.core is not core or self.endpoint is None:
            return
        self._timer_at = None
        self.endpoint.handle_timeout(self.fleet.now)
        core.handle_timeout(self.fleet.now)
        self.turn()
