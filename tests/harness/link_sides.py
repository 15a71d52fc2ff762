"""Heads and nodes of real links over real sockets, in loops that a test turns."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

from bus.acceptor import Acceptor
from bus.endpoint import Endpoint
from bus.errors import PortInUse
from bus.keys import FleetToken
from bus.link import LinkDown, LinkLimits, MessageReceived, PeerRefused
from bus.transport import clock
from bus.transport.dealer import DealerLink
from bus.transport.loop import Loop
from bus.transport.router import RouterLinks
from tests.harness.link_identities import head, node


class HeadSide:
    """A listening head in a loop."""

    def __init__(self, loop: Loop, address: str, boot: int = 5) -> None:
        self.acceptor = Acceptor(head(incarnation=boot), entropy=os.urandom)
        self.links = RouterLinks(address, self.acceptor)
        self.links.attach(loop)
        self.seen: list[tuple[bytes, Any]] = []
        loop.on_turn(self._turn)

    def _turn(self, now: float) -> None:
        self.seen += self.links.events()
        self.links.flush(now)

    def address_of(self, name: str) -> bytes | None:
        for address, endpoint in self.acceptor.links():
            if endpoint.peer and endpoint.peer.name == name:
                return address
        return None

    def messages(self, address: bytes) -> list[Any]:
        return [
            event.message
            for found, event in self.seen
            if found == address and isinstance(event, MessageReceived)
        ]

    def downs(self) -> list[LinkDown]:
        return [event for _, event in self.seen if isinstance(event, LinkDown)]


class NodeSide:
    """A joining node in a loop of its own or shared."""

    def __init__(
        self,
        loop: Loop,
        address: str,
        name: str,
        token: FleetToken | None = None,
        limits: LinkLimits | None = None,
    ) -> None:
        identity = node(name, tokens=(token,)) if token else node(name)
        self.link = DealerLink(
            address,
            lambda: Endpoint(identity, initiator=True, entropy=os.urandom, limits=limits),
            rng=random.Random(name),
        )
        self.link.attach(loop)
        self.seen: list[Any] = []
        loop.on_turn(self._turn)

    def _turn(self, now: float) -> None:
        self.seen += self.link.events()
        self.link.flush(now)

    def messages(self) -> list[Any]:
        return [event.message for event in self.seen if isinstance(event, MessageReceived)]

    def codes(self) -> list[str]:
        return [e.code for e in self.seen if isinstance(e, LinkDown | PeerRefused)]


class Stage:
    """Loops, and all sides to close at the end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.loop = Loop()
        self._closers: list[Callable[[], None]] = [self.loop.close]

    def head(self, address: str | None = None, boot: int = 5) -> HeadSide:
        made = HeadSide(self.loop, address or self.address, boot)
        self._closers.append(lambda: made.links.close("test is over"))
        return made

    def head_again(self, address: str, boot: int) -> HeadSide:
        """A head where one was closed just now; libzmq lets a tcp port go a moment later."""
        for _ in range(1000):
            try:
                return self.head(address, boot)
            except PortInUse:
                self.loop.turn(0.01)
        raise AssertionError(f"{address} was never let go")

    def node(
        self,
        address: str,
        name: str = "gpu-1",
        loop: Loop | None = None,
        token: FleetToken | None = None,
        limits: LinkLimits | None = None,
    ) -> NodeSide:
        made = NodeSide(loop or self.loop, address, name, token, limits)
        self._closers.append(lambda: made.link.close("test is over"))
        return made

    def own_loop(self) -> Loop:
        made = Loop()
        self._closers.append(made.close)
        return made

    def until(self, condition: Callable[[], bool], *others: Loop) -> None:
        until = clock.now() + 30.0
        while not condition():
            assert clock.now() < until, f"it never came true: {vars(self)}"
            self.loop.turn(0.0 if others else 0.1)
            for loop in others:
                loop.turn(0.005)

    def close(self) -> None:
        for closer in reversed(self._closers):
            closer()
