"""The head in memory: its real core, gate and acceptor, driven as head/server.py drives them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from bus.acceptor import Acceptor
from bus.crypto import KeyPair
from bus.keys import FleetToken
from bus.link import LinkDown, LinkIdentity, LinkUp, MessageReceived
from bus.messages.link import HeadConfirm, WatermarkAck
from head.core import HeadCore
from head.effects import CloseLink, Output, Persist, Reply, SendLink, TextJob
from head.gate import OutputGate
from tests.harness.memory_parts import MODEL, TURN_S, text_reply

if TYPE_CHECKING:
    from tests.harness.memory_fleet import MemoryFleet


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
