"""The head in memory: its real core, gate and links, driven as head/server.py drives them."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

from bus.acceptor import Acceptor
from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.ids import NodeIdentity
from bus.keys import FleetToken
from bus.link import LinkDown, LinkEvent, LinkIdentity, LinkUp, MessageReceived, PeerInfo
from bus.messages.link import (
    HeadConfirm,
    Heartbeat,
    NodeConfirm,
    WatermarkAck,
)
from head.core import HeadCore
from head.effects import ClientKey, CloseLink, LinkKey, Output, Reply, SendLink, TextJob
from head.gate import OutputGate
from head.rows import PutPeer
from head.uploads import NO_FILES
from tests.harness.memory_disk import DiskWriter
from tests.harness.memory_ends import Dialer, Listener
from tests.harness.memory_parts import MODEL
from tests.harness.memory_process import Process
from tests.harness.memory_tokenizers import MemoryTokenizers

if TYPE_CHECKING:
    from tests.harness.memory_fleet import MemoryFleet

#: Where a link is: the end it is on and its address there.
_Place = tuple[Dialer | Listener, bytes]


class HeadHost(Process):
    """One life of the head. Nodes that listen are dialed, the others join."""

    def __init__(self, fleet: MemoryFleet, key: KeyPair, token: FleetToken) -> None:
        super().__init__(fleet, "head")
        self.rate, self.offset_s = fleet.head_clock
        stored = fleet.disk.start()
        now = self.now()
        if fleet.files is not None:
            fleet.files.restart()
        if isinstance(fleet.tokenizers, MemoryTokenizers):
            fleet.tokenizers.restart()
        self.core = HeadCore(
            fleet.policy,
            stored,
            entropy=fleet.entropy,
            now=now,
            wall_s=1e9 + fleet.now,
            files=fleet.files or NO_FILES,
            tokenizers=fleet.tokenizers,
        )
        self.gate = OutputGate()
        self.writer = DiskWriter(fleet, self._committed)
        confirm = HeadConfirm(identity=stored.head_id, boot=stored.boot, software="test")
        self._identity = LinkIdentity(
            role="head",
            name=stored.head_id,
            static=key,
            tokens=(token,),
            incarnation=stored.boot,
            confirm=lambda: confirm,
        )
        self._newest = {p.public: (p.incarnation, p.hello_counter) for p in stored.peers}
        self.acceptor = Acceptor(
            self._identity,
            entropy=fleet.entropy,
            limits=fleet.limits,
            last_seen=self._newest.get,
            heartbeat=self._heartbeat,
        )
        self.listener = Listener(self, self.acceptor)
        self._ends: list[Dialer | Listener] = [self.listener]
        self._links: dict[tuple[int, bytes], LinkKey] = {}
        self._places: dict[LinkKey, _Place] = {}
        self._link_numbers = itertools.count(1)
        #: Of each link that it ever had: its node.
        self.names: dict[LinkKey, str] = {}
        own = {MODEL: "/encoder" if fleet.encoder else "/models/toy"}
        self.core.models_found(own | fleet.folders, now)

    @property
    def alive(self) -> bool:
        return self.fleet.head is self

    def dial(self) -> None:
        """Call the nodes that listen."""
        for node in self.fleet.nodes:
            if node.listens:
                dialer = Dialer(self, partial(_listener_of, node), self._endpoint)
                self._ends.append(dialer)
                dialer.open()

    def kill(self) -> None:
        """kill -9; `fleet.head` is None by now."""
        self.begin()
        self.writer.kill()
        self.listener.close_all()
        for end in self._ends:
            if isinstance(end, Dialer) and end.connection is not None:
                end.connection.close(end)

    def receive(self, address: bytes, frame: bytes) -> None:
        """A frame at the listening socket."""
        self.listener.receive_at(address, frame)

    def has_link(self, link: LinkKey) -> bool:
        """Whether a link is up, as far as its core was told."""
        return link in self._places

    def client_request(self, client: ClientKey, frames: list[bytes]) -> None:
        self.post(lambda: self.core.client_request(client, frames, self.now()))

    def client_gone(self, client: ClientKey) -> None:
        self.post(lambda: self.core.client_gone(client, self.now()))

    # --- the loop -----------------------------------------------------------------------------

    def turn(self) -> None:
        if not self.alive:
            return
        for end in self._ends:
            for address, link_id, event in end.take():
                self._link_event(end, address, link_id, event)
        self.core.uploads.settle()
        self.core.tokenizers.settle(self.now())
        effects = self.core.effects()
        self.fleet.watch.effects(effects)
        persist, released = self.gate.admit(effects)
        if persist is not None:
            self.writer.submit(persist)
        self._release(released)
        for end in self._ends:
            end.flush()
        self.arm()

    def due(self) -> float | None:
        times = [self.core.next_timeout(), *(end.next_timeout() for end in self._ends)]
        return min((time for time in times if time is not None), default=None)

    def fire(self, now: float) -> None:
        for end in self._ends:
            end.handle_timeout(now)
        self.core.handle_timeout(now)

    def _link_event(
        self, end: Dialer | Listener, address: bytes, link_id: int, event: LinkEvent
    ) -> None:
        now, watch, key = self.now(), self.fleet.watch, (id(end), address)
        match event:
            case LinkUp(peer=peer, confirm=confirm) if isinstance(confirm, NodeConfirm):
                link = next(self._link_numbers)
                self._links[key], self._places[link] = link, (end, address)
                self.names[link] = peer.name
                watch.link_up("head", peer.name, link_id)
                self._newest[peer.public] = (peer.incarnation, peer.hello_counter)
                self.core.link_up(link, confirm, now, _seen(peer))
            case LinkDown(code=code, reason=reason, by_peer=_):
                gone = self._links.pop(key, None)
                if gone is not None:
                    del self._places[gone]
                    watch.link_down("head", "", link_id)
                    self.core.link_down(gone, reason, now, left=code == "goodbye")
            case MessageReceived(message=message):
                if key in self._links:
                    watch.accepted("head", "", link_id, message)
                    self.core.link_message(self._links[key], message, now)

    def _committed(self, lsn: int) -> None:
        self.post(lambda: self._release(self.gate.durable(lsn)))

    def _release(self, outputs: list[Output]) -> None:
        fleet = self.fleet
        for output in outputs:
            fleet.watch.released(output)
            match output:
                case SendLink(link=link, message=message):
                    self._check_ack(message)
                    if link in self._places:
                        end, address = self._places[link]
                        end.send(address, message)
                case Reply(client=client, body=body):
                    fleet.after(fleet.delay_s, partial(fleet.to_client, client, body))
                case CloseLink(link=link, reason=reason):
                    if link in self._places:
                        end, address = self._places[link]
                        end.close_link(address, reason)
                case TextJob(message=job):
                    fleet.after(fleet.text_s(job), partial(self._text_done, job))

    def _check_ack(self, message: object) -> None:
        if (
            isinstance(message, WatermarkAck)
            and self.gate.durable_lsn > self.fleet.disk.durable_lsn
        ):
            raise AssertionError("acknowledged before the commit")

    def _text_done(self, job: object) -> None:
        self.post(lambda: self.core.text_reply(self.fleet.text_reply(job), self.now()))

    # --- links --------------------------------------------------------------------------------

    def _endpoint(self) -> Endpoint:
        return Endpoint(
            self._identity,
            initiator=True,
            entropy=self.fleet.entropy,
            limits=self.fleet.limits,
            heartbeat=self._heartbeat,
        )

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(loop_lag_ms=self.fleet.next_heartbeat())

    def queued_bytes(self) -> int:
        """Bytes of messages that wait at its links."""
        return sum(end.queued_bytes() for end in self._ends)


def _listener_of(node: object) -> Listener | None:
    end = getattr(node, "end", None)
    return end if isinstance(end, Listener) else None


def _seen(peer: PeerInfo) -> PutPeer:
    return PutPeer(
        public=peer.public,
        identity=NodeIdentity(peer.name),
        incarnation=peer.incarnation,
        hello_counter=peer.hello_counter,
    )
