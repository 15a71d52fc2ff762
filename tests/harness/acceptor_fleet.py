"""One acceptor and the endpoints that connect to it, under virtual time."""

from __future__ import annotations

from typing import Any

from bus.acceptor import Acceptor
from bus.endpoint import Endpoint
from bus.link import (
    LinkDown,
    LinkIdentity,
    PeerRefused,
)
from tests.harness.link_identities import entropy_from, head


class Fleet:
    """One acceptor and the endpoints that connected to it, by return address."""

    def __init__(self, identity: LinkIdentity | None = None, **options: Any) -> None:
        self.now = 100.0
        self.acceptor = Acceptor(identity or head(), entropy=entropy_from(b"head"), **options)
        self.peers: dict[bytes, Endpoint] = {}
        self.events: list[tuple[bytes, Any]] = []
        self.answers: dict[bytes, list[bytes]] = {}

    def join(self, address: bytes, identity: LinkIdentity) -> Endpoint:
        peer = Endpoint(identity, initiator=True, entropy=entropy_from(address))
        self.peers[address] = peer
        peer.connect(self.now)
        self.settle()
        return peer

    def settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for address, peer in self.peers.items():
                while (frame := peer.next_frame(self.now)) is not None:
                    self.acceptor.receive(address, frame, self.now)
                    moved = True
            moved = self.deliver() or moved
        self.events += self.acceptor.events()

    def deliver(self) -> bool:
        moved = False
        while frames := self.acceptor.frames_to_send(self.now):
            for address, frame in frames:
                moved = True
                self.answers.setdefault(address, []).append(frame)
                if address in self.peers:
                    self.peers[address].receive(frame, self.now)
        return moved

    def codes(self, kind: type[LinkDown] | type[PeerRefused]) -> list[tuple[bytes, str]]:
        return [(address, e.code) for address, e in self.events if isinstance(e, kind)]

    def up(self) -> list[bytes]:
        return sorted(address for address, _ in self.acceptor.links())


def hello_of(identity: LinkIdentity, seed: bytes) -> bytes:
    stranger = Endpoint(identity, initiator=True, entropy=entropy_from(seed))
    stranger.connect(0.0)
    frame = stranger.next_frame()
    assert frame is not None
    return frame
