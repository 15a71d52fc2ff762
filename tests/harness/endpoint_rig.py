"""Two endpoints back to back under virtual time, and messages for them to carry."""

from __future__ import annotations

from typing import Any

from bus.endpoint import Endpoint
from bus.ids import CommandId, Epoch, GenerationId, PackedIds, SessionId
from bus.link import LinkDown, LinkIdentity, LinkLimits, MessageReceived, PeerRefused
from bus.messages.link import AppendContent, GenerateCancel, Heartbeat
from tests.harness.link_identities import entropy_from, head, node


class Rig:
    """An initiator and a responder with a wire between them; nothing is lost unless asked."""

    def __init__(
        self,
        initiator: LinkIdentity | None = None,
        responder: LinkIdentity | None = None,
        limits: LinkLimits | None = None,
        seed: bytes = b"rig",
    ) -> None:
        self.now = 1000.0
        self.a = Endpoint(
            initiator or node(), initiator=True, entropy=entropy_from(seed + b"a"), limits=limits
        )
        self.b = Endpoint(
            responder or head(), initiator=False, entropy=entropy_from(seed + b"b"), limits=limits
        )
        self.seen: list[bytes] = []
        self.a_events: list[Any] = []
        self.b_events: list[Any] = []

    def states(self) -> tuple[str, str]:
        return self.a.state, self.b.state

    def carry(self, sender: Endpoint, receiver: Endpoint) -> int:
        count = 0
        while (frame := sender.next_frame(self.now)) is not None:
            self.seen.append(frame)
            receiver.receive(frame, self.now)
            count += 1
        return count

    def settle(self) -> None:
        while self.carry(self.a, self.b) + self.carry(self.b, self.a):
            pass
        self.a_events += self.a.events()
        self.b_events += self.b.events()

    def connect(self) -> Rig:
        self.a.connect(self.now)
        self.settle()
        return self

    def advance(self, seconds: float, *, carry: bool = True) -> None:
        """Run both endpoints' timers for so long."""
        end = self.now + seconds
        while True:
            times = [t for e in (self.a, self.b) if (t := e.next_timeout()) is not None]
            due = min(times, default=end)
            if due > end:
                break
            self.now = max(self.now, due)
            self.a.handle_timeout(self.now)
            self.b.handle_timeout(self.now)
            if carry:
                self.settle()
            if not times:
                break
        self.now = end
        self.a_events += self.a.events()
        self.b_events += self.b.events()

    def messages(self, events: list[Any]) -> list[Any]:
        found = [e.message for e in events if isinstance(e, MessageReceived)]
        return [m for m in found if not isinstance(m, Heartbeat)]


def cancel(number: int) -> GenerateCancel:
    return GenerateCancel(
        command=CommandId(number),
        session=SessionId("s"),
        epoch=Epoch(1),
        generation=GenerationId(1),
    )


def append(ids: int) -> AppendContent:
    return AppendContent(
        command=CommandId(1),
        session=SessionId("s"),
        epoch=Epoch(1),
        base_tokens=0,
        base_digest=b"",
        ids=PackedIds(bytes(4 * ids)),
    )


def ends(events: list[Any]) -> list[str]:
    return [e.code for e in events if isinstance(e, LinkDown)]


def refusals(events: list[Any]) -> list[str]:
    return [e.code for e in events if isinstance(e, PeerRefused)]
