"""The side of a ROUTER: a link for each return address, and what a stranger may cost.

An address may hold two endpoints at once: the link that is up, and a newer handshake of the same
peer. Until a peer's Hello verified it holds nothing here. Who confirmed takes the place of an older
link of its key: at once when that is the same process on a new connection, else after the older
one did not answer a probe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import partial

from bus.address import network_of
from bus.address_slot import AddressSlot, one_too_heavy, one_too_many
from bus.admission import AdmissionControl
from bus.crypto import Entropy
from bus.endpoint import Endpoint
from bus.errors import DecodeError
from bus.frames import SEALED_KINDS, Frame, FrameKind, pack_header, parse_frame
from bus.handshake import Admission
from bus.handshake_steps import HandshakeStep, take_hello
from bus.hello_guard import Mark
from bus.link import (
    LinkEvent,
    LinkIdentity,
    LinkLimits,
    LinkUp,
    PeerConfirmed,
    PeerInfo,
    PeerRefused,
    Refusal,
)
from bus.messages.link import Heartbeat
from bus.self_suspicion import SelfSuspicion
from bus.succession import Succession
from bus.timers import Wakeups

#: A ROUTER can not wait for one peer; a frame that it refused is tried again after this.
REFUSED_RETRY_S = 0.005
#: Stale and Reject answers that wait for the socket; more are dropped, the peers ask again.
MAX_ANSWERS = 256


class Acceptor:
    """All links of one listening socket. Driven by one owner, who owns the socket too.

    Args:
        identity: ours.
        entropy: gives ephemeral keys.
        limits: of each link.
        last_seen: (incarnation, hello counter) stored for a key, or None for an unknown key. The
            owner stores them from each `LinkUp`.
        admit: further checks of who a peer claims to be (pins), before any Diffie-Hellman.
        admit_proven: further checks of a peer that has proved its key (enrolment).
        heartbeat: the content of the next heartbeat.
        suspicion: shared by all links of the process.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        *,
        entropy: Entropy,
        limits: LinkLimits | None = None,
        last_seen: Callable[[bytes], Mark | None] = lambda _: None,
        admit: Admission = lambda _: None,
        admit_proven: Admission = lambda _: None,
        heartbeat: Callable[[], Heartbeat] = Heartbeat,
        suspicion: SelfSuspicion | None = None,
    ) -> None:
        self.identity = identity
        self.limits = limits or LinkLimits()
        self._entropy = entropy
        self._heartbeat = heartbeat
        self._suspicion = suspicion or SelfSuspicion()
        self._control = AdmissionControl(
            identity,
            last_seen=last_seen,
            admit=admit,
            admit_proven=admit_proven,
            linked=self._linked_peers,
        )
        #: In order of the newest handshake; an address without endpoints is not in it.
        self._slots: dict[bytes, AddressSlot] = {}
        self._succession = Succession(
            self._control,
            probe_s=self.limits.probe_s,
            links=self.links,
            replace=self._replace,
        )
        self._events: list[tuple[bytes, LinkEvent]] = []
        self._answers: deque[tuple[bytes, bytes]] = deque()
        #: Addresses with events or another timeout, and those that may have frames to send.
        self._changed: dict[bytes, None] = {}
        self._sending: dict[bytes, None] = {}
        self._wakeups = Wakeups()
        #: Whose frame the last `frames_to_send` gave, by address; answers are nobody's.
        self._offered: dict[bytes, Endpoint] = {}
        self._now = 0.0
        #: Frames that nothing was done with: malformed, or from an address over its limit.
        self.ignored_frames = 0

    # --- what the owner sees ------------------------------------------------------------------

    def endpoint(self, address: bytes) -> Endpoint | None:
        """The link of an address that is up, or None."""
        slot = self._slots.get(address)
        return slot.link if slot else None

    def links(self) -> Iterator[tuple[bytes, Endpoint]]:
        """All links that are up."""
        for address, slot in self._slots.items():
            if slot.link and slot.link.state == "up":
                yield address, slot.link

    def admitted(self) -> set[bytes]:
        """Addresses whose Hello verified: with a link, or a handshake under way."""
        return set(self._slots)

    def is_admitted(self, address: bytes) -> bool:
        """Whether an address is one of these."""
        return address in self._slots

    def linked(self) -> set[bytes]:
        """Addresses with a link, or with a peer that confirmed and waits for its place."""
        return {
            address
            for address, slot in self._slots.items()
            if any(endpoint.state in ("up", "held") for endpoint in slot.endpoints())
        }

    @property
    def half_open(self) -> int:
        return sum(slot.half_open is not None for slot in self._slots.values())

    def events(self) -> list[tuple[bytes, LinkEvent]]:
        """What happened since the last call, with its address, in order."""
        self._settle_all()
        events, self._events = self._events, []
        return events

    # --- receiving ----------------------------------------------------------------------------

    def receive(
        self, address: bytes, data: bytes, now: float, *, peer_key: bytes | None = None
    ) -> None:
        """Take one frame from the socket.

        Args:
            address: the ROUTER's return address.
            data: the frame.
            now: seconds.
            peer_key: the network address that it came from, which handshakes are counted by; the
                return address is when there is nothing better.
        """
        self._now = now
        try:
            frame = parse_frame(data)
        except DecodeError:
            self.ignored_frames += 1
            return
        slot = self._slots.get(address)
        for endpoint in slot.endpoints() if slot else ():
            if endpoint.link_id == frame.link_id:
                endpoint.receive_frame(frame, now)
                self._settle(address)
                if frame.more and endpoint.state == "confirming":
                    self._cut_half_open(one_too_heavy(self._slots))
                return
        if frame.kind is FrameKind.HELLO:
            self._on_hello(address, frame, now, peer_key)
        elif frame.kind in SEALED_KINDS:
            self._answer(address, pack_header(FrameKind.STALE, frame.link_id))
        else:
            self.ignored_frames += 1

    def _on_hello(self, address: bytes, frame: Frame, now: float, peer_key: bytes | None) -> None:
        host = (peer_key or b"").decode(errors="replace")
        source = network_of(host) if host else address
        if not self._control.may_try(source, now):
            self.ignored_frames += 1
            return

        def check(peer: PeerInfo) -> None:
            self._control.check(replace(peer, host=host), source, now)

        step = take_hello(self.identity, frame, self._entropy, check)
        if step.made is not None:
            made = replace(step.made, peer=replace(step.made.peer, host=host))
            self._open_half(address, source, replace(step, made=made))
            return
        self._control.failed(source, now)
        if step.refused is not None:
            self._events.append((address, step.refused))
        if step.reply is not None:
            self._answer(address, step.reply)

    def _open_half(self, address: bytes, source: Hashable, step: HandshakeStep) -> None:
        endpoint = Endpoint(
            self.identity,
            initiator=False,
            entropy=self._entropy,
            limits=self.limits,
            heartbeat=self._heartbeat,
            holds=True,
            suspicion=self._suspicion,
            on_change=partial(self._touch, address),
        )
        slot = self._slots.pop(address, None) or AddressSlot()
        slot.source, slot.half_open = source, endpoint
        self._slots[address] = slot
        endpoint.take_step(step, self._now)
        self._cut_half_open(one_too_many(self._slots))

    def _cut_half_open(self, found: tuple[bytes, str] | None) -> None:
        if found is None:
            return
        address, reason = found
        cut, self._slots[address].half_open = self._slots[address].half_open, None
        code = Refusal.TOO_MANY_HANDSHAKES.text
        self._events.append((address, PeerRefused(code, reason, peer=cut.peer if cut else None)))
        self._forget_if_empty(address)

    def _answer(self, address: bytes, frame: bytes) -> None:
        if len(self._answers) < MAX_ANSWERS:
            self._answers.append((address, frame))

    # --- what an address holds ----------------------------------------------------------------

    def _touch(self, address: bytes) -> None:
        self._changed[address] = None
        self._sending[address] = None

    def _settle_all(self) -> None:
        self._settle_changed()
        for address in self._succession.waiting():
            self._judge(address)
        self._settle_changed()

    def _settle_changed(self, but: bytes | None = None) -> None:
        while address := next((found for found in self._changed if found != but), None):
            self._settle(address)

    def _settle(self, address: bytes) -> None:
        """Collect an address's events; a handshake that came up takes its place."""
        self._changed.pop(address, None)
        slot = self._slots.get(address)
        if slot is None:
            return
        for endpoint in slot.endpoints():
            for event in endpoint.events():
                if isinstance(event, PeerConfirmed):
                    self._on_confirmed(address, endpoint, event.peer)
                    continue
                if isinstance(event, LinkUp):
                    self._take_place(address, slot, endpoint)
                self._events.append((address, event))
        if slot.half_open and slot.half_open.state == "down" and not slot.half_open.queued_bytes:
            slot.half_open = None
        self._forget_if_empty(address)

    def _forget_if_empty(self, address: bytes) -> None:
        slot = self._slots[address]
        if slot.link and slot.link.state == "down" and not slot.link.queued_bytes:
            slot.link = None
        if slot.endpoints():
            self._wakeups.plan(address, slot.next_timeout())
            if until := self._succession.until(address):
                self._wakeups.plan(address, until)
        else:
            del self._slots[address]
            self._wakeups.plan(address, None)

    def _take_place(self, address: bytes, slot: AddressSlot, endpoint: Endpoint) -> None:
        if endpoint.peer:
            self._control.linked(endpoint.peer)
        if slot.link and slot.link is not endpoint:
            self._replace(address, slot.link, "it shook hands again on its connection")
            while (frame := slot.link.next_frame()) is not None:
                self._answer(address, frame)
        slot.link, slot.half_open = endpoint, None

    # --- one link a key -----------------------------------------------------------------------

    def _linked_peers(self) -> Iterator[PeerInfo]:
        for _, link in self.links():
            if link.peer:
                yield link.peer

    def _on_confirmed(self, address: bytes, newcomer: Endpoint, peer: PeerInfo) -> None:
        """A peer confirmed: it comes up, waits, or is refused."""
        # The end of an older link is told first.
        self._settle_changed(but=address)
        self._succession.confirmed(address, newcomer, peer, self._now)
        if newcomer.state == "up":
            self._settle(address)

    def _judge(self, address: bytes) -> None:
        """Has the older link of a newcomer's key answered, or had its time?"""
        slot = self._slots.get(address)
        newcomer = slot.half_open if slot else None
        if self._succession.judge(address, newcomer, self._now) and newcomer and newcomer.peer:
            self._on_confirmed(address, newcomer, newcomer.peer)

    def _replace(self, address: bytes, link: Endpoint, reason: str) -> None:
        link.replace(reason, self._now)
        self._events += [(address, event) for event in link.events()]

    # --- sending ------------------------------------------------------------------------------

    def frames_to_send(self, now: float | None = None) -> list[tuple[bytes, bytes]]:
        """At most one frame for each address that takes frames; call again until it is empty."""
        self._now = self._now if now is None else now
        self._offered = {}
        if self._answers:
            frames = list(self._answers)
            self._answers.clear()
            return frames
        frames = []
        for address in list(self._sending):
            slot = self._slots.get(address)
            if slot and slot.blocked_until > self._now:
                continue
            for endpoint in slot.endpoints() if slot else ():
                frame = endpoint.next_frame(self._now)
                if frame is not None:
                    frames.append((address, frame))
                    self._offered[address] = endpoint
                    break
            else:
                del self._sending[address]
                self._changed[address] = None
        return frames

    def frame_refused(self, address: bytes, now: float) -> None:
        """The socket did not take the frame for this address; it is offered again in 5 ms.

        Stale and Reject are not kept: whoever asked asks again.
        """
        self._now = now
        endpoint = self._offered.pop(address, None)
        slot = self._slots.get(address)
        if endpoint is not None and slot is not None:
            endpoint.frame_refused()
            slot.blocked_until = now + REFUSED_RETRY_S
            self._touch(address)

    # --- ending and time ----------------------------------------------------------------------

    def disconnected(self, address: bytes, reason: str, now: float) -> None:
        """The connection behind an address is gone."""
        self._now = now
        slot = self._slots.get(address)
        if slot is None:
            return
        for endpoint in slot.endpoints():
            endpoint.disconnected(reason, now)
        self._settle(address)

    def close(self, reason: str, now: float) -> None:
        """End all links with a Goodbye; `frames_to_send` still gives those."""
        self._now = now
        for address, slot in list(self._slots.items()):
            for endpoint in slot.endpoints():
                endpoint.close(reason, now)
            self._settle(address)

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`, or None; at once when there are events to be taken."""
        self._settle_changed()
        return self._now if self._events else self._wakeups.next()

    def handle_timeout(self, now: float) -> None:
        """Do what is due. Call after every frame that was readable has been received."""
        self._now = now
        self._settle_all()
        for address in self._wakeups.due(now):
            slot = self._slots.get(address)
            if slot is None:
                continue
            if slot.blocked_until <= now:
                slot.blocked_until = 0.0
            for endpoint in slot.endpoints():
                endpoint.handle_timeout(now)
            self._touch(address)
        self._settle_all()
