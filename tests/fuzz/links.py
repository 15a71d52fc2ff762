"""Fuzz targets on links: strangers before authentication, members that send anything, the wire.

Whatever comes, a link answers with events; nothing raises, what it holds stays within its limits,
and a good node still joins.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bus.acceptor import MAX_ANSWERS, Acceptor
from bus.address_slot import MAX_HALF_OPEN
from bus.endpoint import Endpoint
from bus.errors import AuthError, DecodeError
from bus.frames import CHANNELS, FrameKind, pack_header, parse_frame
from bus.handshake import Established, InitiatorHandshake, answer_hello
from bus.ids import NodeIdentity
from bus.link import HandshakeRefused, LinkIdentity, LinkLimits, MessageReceived
from bus.messages.link import LINK, Heartbeat, NodeConfirm
from tests.fuzz.decoders import Case, Wrong
from tests.fuzz.generate import change_bytes, encoding, random_bytes, struct_of
from tests.harness.link_identities import head, key, node, token

#: Frames kept to be changed or sent again.
POOL = 64
#: Long enough for every limit on rates and every handshake to be over.
CALM_S = 30.0


class Hostile:
    """One acceptor and everything that may happen at its socket."""

    def __init__(self, rng: random.Random, identity: LinkIdentity) -> None:
        self.rng = rng
        self.now = 1000.0
        self.acceptor = Acceptor(identity, entropy=rng.randbytes)
        self.addresses = [b"\0" + rng.randbytes(4) for _ in range(rng.choice((1, 3, 10, 90)))]
        self.peers: dict[bytes, Endpoint] = {}
        #: Sealing of those who shook hands by hand, to send what no honest peer sends.
        self.members: dict[bytes, Established] = {}
        self.pool: list[bytes] = []
        self.names = 0

    # --- what may happen ----------------------------------------------------------------------

    def step(self) -> None:
        """One thing, drawn by how telling it is."""
        actions: list[Callable[[], None]] = [
            *(self.noise, self.changed, self.changed, self.again, self.join, self.join),
            *(self.talk, self.talk, self.enter, self.abuse, self.abuse, self.pass_time),
            *(self.drain, self.drain, self.part),
        ]
        self.rng.choice(actions)()

    def give(self, address: bytes, frame: bytes) -> None:
        host = self.rng.choice((None, b"10.0.0.1", b"10.0.0.2", b"\xff\xfe"))
        self.acceptor.receive(address, frame, self.now, peer_key=host)
        if len(self.pool) < POOL:
            self.pool.append(frame)
        else:
            self.pool[self.rng.randrange(POOL)] = frame

    def noise(self) -> None:
        frame = random_bytes(self.rng)
        if self.rng.random() < 0.7:
            kind = self.rng.choice(list(FrameKind))
            links = [0, self.rng.getrandbits(64), *(e.link_id or 0 for e in self.peers.values())]
            channel = self.rng.randrange(CHANNELS) if self.rng.random() < 0.5 else 0
            frame = pack_header(kind, self.rng.choice(links), 0, channel) + frame
        self.give(self.rng.choice(self.addresses), frame)

    def changed(self) -> None:
        if self.pool:
            frame = change_bytes(self.rng, self.rng.choice(self.pool), self.pool)
            self.give(self.rng.choice(self.addresses), frame)

    def again(self) -> None:
        if self.pool:
            self.give(self.rng.choice(self.addresses), self.rng.choice(self.pool))

    def join(self) -> None:
        address = self.rng.choice(self.addresses)
        peer = self.peers[address] = Endpoint(
            self.stranger(), initiator=True, entropy=self.rng.randbytes
        )
        peer.connect(self.now)
        self.say(address, peer)

    def stranger(self) -> LinkIdentity:
        """A peer that may or may not fit: token, role, name and boot are drawn."""
        rng = self.rng
        self.names += 1
        name = rng.choice((f"n{self.names}", "n1", "n2"))
        tokens = (token(rng.choice(("current", "current", "current", "other"))),)
        if rng.random() < 0.2:
            return head(name=name, tokens=tokens, incarnation=rng.randrange(9))
        return node(name, boot=rng.randrange(9), tokens=tokens)

    def say(self, address: bytes, peer: Endpoint) -> None:
        while (frame := peer.next_frame(self.now)) is not None:
            self.give(address, frame)

    def talk(self) -> None:
        """Let everybody who is honest answer."""
        self.drain()
        for address, peer in list(self.peers.items()):
            if self.rng.random() < 0.7:
                if peer.state == "up":
                    peer.send(struct_of(self.rng, Heartbeat))
                self.say(address, peer)

    def enter(self) -> None:
        """Shake hands by hand with a valid token."""
        address = self.rng.choice(self.addresses)
        name, boot = self.rng.choice(("n1", "n2", "n3")), self.rng.randrange(9)
        identity = node(name, boot, static=key(self.rng.choice((name, "n1", "n4"))))
        pending = InitiatorHandshake(
            identity, token(), self.rng.getrandbits(64), self.rng.randbytes
        )
        self.give(address, pending.hello)
        for where, frame in self.acceptor.frames_to_send(self.now):
            if where == address and frame[5] == FrameKind.HELLO_ACK:
                try:
                    self.members[address] = pending.read_ack(parse_frame(frame))
                except (AuthError, DecodeError, HandshakeRefused):
                    continue
        if address in self.members and self.rng.random() < 0.8:
            confirm = struct_of(self.rng, NodeConfirm)
            if self.rng.random() < 0.8:
                confirm = replace(confirm, identity=NodeIdentity(name), incarnation=boot)
            self.seal(address, FrameKind.CONFIRM, 0, LINK.encode(confirm))

    def abuse(self) -> None:
        """A member sends anything under a good seal."""
        if not self.members:
            return
        address = self.rng.choice(list(self.members))
        kind = self.rng.choice((FrameKind.DATA, FrameKind.DATA, FrameKind.CONFIRM, FrameKind.REKEY))
        channel = self.rng.choice((0, 0, self.rng.randrange(CHANNELS)))
        plain = encoding(self.rng, LINK)
        if kind is FrameKind.REKEY:
            plain = bytes([self.rng.randrange(5)]) + self.rng.randbytes(
                self.rng.choice((0, 40, 80))
            )
        self.seal(address, kind, channel, plain[:100_000])

    def seal(self, address: bytes, kind: FrameKind, channel: int, plain: bytes) -> None:
        sealer = self.members[address].sealer
        self.give(address, sealer.seal(kind, channel, plain, more=self.rng.random() < 0.2))

    def pass_time(self) -> None:
        self.now += self.rng.choice((0.0, 0.01, 0.3, 2.5, 6.0, 11.0, 40.0))
        self.acceptor.next_timeout()
        self.acceptor.handle_timeout(self.now)
        for peer in self.peers.values():
            peer.handle_timeout(self.now)

    def drain(self) -> None:
        """Send what is to be sent; now and then the socket refuses."""
        for _ in range(20):
            frames = self.acceptor.frames_to_send(self.now)
            for address, frame in frames:
                if self.rng.random() < 0.1:
                    self.acceptor.frame_refused(address, self.now)
                elif address in self.peers:
                    self.peers[address].receive(frame, self.now)
            if not frames:
                break
        self.acceptor.events()
        for peer in self.peers.values():
            peer.events()

    def part(self) -> None:
        address = self.rng.choice(self.addresses)
        self.acceptor.disconnected(address, "fuzz", self.now)
        self.peers.pop(address, None)
        self.members.pop(address, None)

    # --- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        """Limits hold, and time clears what did not come up."""
        if self.acceptor.half_open > MAX_HALF_OPEN:
            raise Wrong(f"{self.acceptor.half_open} handshakes are open at once")
        if not self.acceptor.admitted() <= set(self.addresses):
            raise Wrong("an address that never spoke has a link")
        waiting = len(self.acceptor.frames_to_send(self.now))
        if waiting > MAX_ANSWERS + len(self.addresses):
            raise Wrong(f"{waiting} answers wait")

    def calm_down(self) -> None:
        """Nobody speaks until every limit is over."""
        for address in self.addresses:
            self.acceptor.disconnected(address, "fuzz", self.now)
        self.now += CALM_S
        self.acceptor.handle_timeout(self.now)
        self.acceptor.events()
        if self.acceptor.admitted():
            raise Wrong("a connection that ended holds something")
        while self.acceptor.frames_to_send(self.now):
            pass

    def good_node_joins(self) -> None:
        peer = Endpoint(node("good", boot=99), initiator=True, entropy=self.rng.randbytes)
        peer.connect(self.now)
        for _ in range(10):
            while (frame := peer.next_frame(self.now)) is not None:
                self.acceptor.receive(b"\0good", frame, self.now)
            for _, frame in self.acceptor.frames_to_send(self.now):
                peer.receive(frame, self.now)
            self.acceptor.events()
        if peer.state != "up":
            raise Wrong(f"a good node is {peer.state}: {peer.events()}")


def acceptor_case(rng: random.Random) -> None:
    """A socket's whole life among strangers, members and honest peers."""
    of_head = rng.random() < 0.8
    hostile = Hostile(rng, head() if of_head else node("n0"))
    for _ in range(rng.choice((3, 10, 40, 150))):
        hostile.step()
        hostile.check()
    hostile.calm_down()
    if of_head:
        hostile.good_node_joins()


def dialer_case(rng: random.Random) -> None:
    """A dialer against a server that has the token, or not, and answers as it likes."""
    now = 1000.0
    dialer = Endpoint(head(), initiator=True, entropy=rng.randbytes)
    dialer.connect(now)
    made: Established | None = None
    pool: list[bytes] = [rng.randbytes(40)]
    for _ in range(rng.choice((3, 10, 40))):
        while (frame := dialer.next_frame(now)) is not None:
            pool.append(frame)
            if frame[5] == FrameKind.HELLO and rng.random() < 0.8:
                ack, made = answer_hello(node("n1"), parse_frame(frame), rng.randbytes, _admit)
                pool.append(ack)
                answer = rng.choice((ack, ack, change_bytes(rng, ack, pool)))
                dialer.receive(answer, now)
                if rng.random() < 0.7:
                    fields = struct_of(rng, NodeConfirm)
                    if rng.random() < 0.8:
                        fields = replace(fields, identity=NodeIdentity("n1"), incarnation=3)
                    confirm = LINK.encode(fields)
                    dialer.receive(made.sealer.seal(FrameKind.CONFIRM, 0, confirm), now)
        how = rng.randrange(4)
        if how == 0:
            dialer.receive(change_bytes(rng, rng.choice(pool), pool), now)
        elif how == 1 and made is not None:
            kind = rng.choice((FrameKind.DATA, FrameKind.CONFIRM, FrameKind.REKEY))
            plain = encoding(rng, LINK)[:100_000]
            dialer.receive(made.sealer.seal(kind, rng.randrange(CHANNELS), plain), now)
        elif how == 2:
            kind = rng.choice((FrameKind.REJECT, FrameKind.STALE, FrameKind.HELLO))
            link_id = rng.choice((dialer.link_id or 0, made.link_id if made else 1))
            dialer.receive(pack_header(kind, link_id) + random_bytes(rng)[:200], now)
        else:
            now += rng.choice((0.1, 1.0, 6.0, 40.0))
            dialer.handle_timeout(now)
        dialer.events()


def _admit(_: object) -> None:
    """Everybody."""


def wire_case(rng: random.Random) -> None:
    """Two honest ends and a wire that changes, drops, doubles and reorders frames.

    Nothing comes out that the other end did not send, nothing twice, and nothing out of order.
    """
    now = 1000.0
    # Few frames to a key, so that keys change under way.
    limits = LinkLimits(rekey_frames=rng.choice((3, 10, 2**32)))
    ends = (
        Endpoint(node(), initiator=True, entropy=rng.randbytes, limits=limits),
        Endpoint(head(), initiator=False, entropy=rng.randbytes, limits=limits),
    )
    ends[0].connect(now)
    sent: tuple[list[int], list[int]] = ([], [])
    got: tuple[list[int], list[int]] = ([], [])
    harm = rng.choice((0.0, 0.02, 0.2))
    pool: list[bytes] = []
    for number in range(rng.choice((10, 60))):
        side = rng.randrange(2)
        if rng.random() < 0.5 and ends[side].send(Heartbeat(loop_lag_ms=number)):
            sent[side].append(number)
        while (frame := ends[side].next_frame(now)) is not None:
            pool.append(frame)
            for harmed in _harm(rng, frame, pool, harm):
                ends[1 - side].receive(harmed, now)
        now += rng.choice((0.0, 0.0, 0.0, 0.5))
        for which, end in enumerate(ends):
            end.handle_timeout(now)
            got[which].extend(_numbers(end.events()))
            if end.initiator and end.state == "down":
                end.connect(now)
    for which in range(2):
        _check_subsequence(sent[1 - which], got[which])
        if not harm and got[which] != sent[1 - which][: len(got[which])]:
            raise Wrong("a wire that harms nothing lost a message")


def _harm(rng: random.Random, frame: bytes, pool: list[bytes], share: float) -> list[bytes]:
    if rng.random() >= share:
        return [frame]
    changed = change_bytes(rng, frame, pool)
    return rng.choice(([], [frame, frame], [changed], [changed, frame], [rng.choice(pool), frame]))


def _numbers(events: list[Any]) -> list[int]:
    """Which heartbeats came that a test sent (those of idleness carry 0)."""
    beats = [e.message for e in events if isinstance(e, MessageReceived)]
    return [beat.loop_lag_ms for beat in beats if isinstance(beat, Heartbeat) and beat.loop_lag_ms]


def _check_subsequence(sent: list[int], got: list[int]) -> None:
    left = iter([0, *sent])
    if not all(number in left for number in got):
        raise Wrong(f"{got} came of {sent}")


LINKS: dict[str, Case] = {"acceptor": acceptor_case, "dialer": dialer_case, "wire": wire_case}
