"""A node in memory: its real core and endpoint, driven as agent/node.py drives them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from agent.actions import SendToWorker
from agent.core import AgentCore
from bus.agent_records import SendToHead
from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.ids import NodeIdentity, WorkerIncarnation
from bus.link import LinkDown, LinkIdentity, LinkUp, MessageReceived
from tests.harness.memory_parts import MODEL, STEP_S, TURN_S, WINDOW, MadeUpWorker, expected_tokens

if TYPE_CHECKING:
    from tests.harness.memory_fleet import MemoryFleet


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
