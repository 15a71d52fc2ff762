"""The side of a ROUTER: a link for each return address, and what a stranger may cost.

An address may hold two endpoints at once: the link that is up, and a newer handshake of the same
peer that replaces it once it confirms. Until a peer's Hello verified it holds nothing here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bus.crypto import Entropy
from bus.endpoint import Endpoint
from bus.errors import DecodeError
from bus.frames import SEALED_KINDS, Frame, FrameKind, pack_header, parse_frame
from bus.handshake import Admission, HelloGuard
from bus.link import (
    HandshakeRefused,
    LinkEvent,
    LinkIdentity,
    LinkLimits,
    LinkUp,
    PeerInfo,
    PeerRefused,
    Refusal,
)
from bus.messages.link import Heartbeat
from bus.rate_limit import KeyedBuckets, TokenBucket

#: Handshakes that wait for a Confirm; above it the oldest is cut.
MAX_HALF_OPEN = 64
#: Hellos that failed, for one address; good ones cost nothing.
FAILED_HELLOS_PER_S = 20.0
FAILED_HELLOS_BURST = 5.0
#: Diffie-Hellman exchanges for keys that were never seen; 50 cost some 1% of a core.
UNKNOWN_KEYS_PER_S = 50.0
#: A ROUTER can not wait for one peer; a frame that it refused is tried again after this.
REFUSED_RETRY_S = 0.005
#: So often may one identity's link be replaced; two processes that share a key would never stop.
MAX_REPLACEMENTS = 3
REPLACEMENT_WINDOW_S = 60.0
#: Stale and Reject answers that wait for the socket; more are dropped, the peers ask again.
MAX_ANSWERS = 256


@dataclass(slots=True)
class _Slot:
    """What one address holds."""

    link: Endpoint | None = None
    half_open: Endpoint | None = None
    #: When the socket refused its last frame, until when it is left alone.
    blocked_until: float = 0.0

    def endpoints(self) -> list[Endpoint]:
        return [found for found in (self.link, self.half_open) if found]


class Acceptor:
    """All links of one listening socket. Driven by one owner, who owns the socket too.

    Args:
        identity: ours.
        entropy: gives ephemeral keys.
        limits: of each link.
        last_seen: (incarnation, hello counter) stored for a key, or None for an unknown key. The
            owner stores them from each `LinkUp`.
        admit: further checks of a peer (enrolment, pins), before any Diffie-Hellman.
        heartbeat: the content of the next heartbeat.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        *,
        entropy: Entropy,
        limits: LinkLimits | None = None,
        last_seen: Callable[[bytes], tuple[int, int] | None] = lambda _: None,
        admit: Admission = lambda _: None,
        heartbeat: Callable[[], Heartbeat] = Heartbeat,
    ) -> None:
        self.identity = identity
        self.limits = limits or LinkLimits()
        self._entropy = entropy
        self._guard = HelloGuard(last_seen)
        self._admit_more = admit
        self._heartbeat = heartbeat
        #: In order of the newest handshake; an address without endpoints is not in it.
        self._slots: dict[bytes, _Slot] = {}
        self._events: list[tuple[bytes, LinkEvent]] = []
        self._answers: deque[tuple[bytes, bytes]] = deque()
        self._failures = KeyedBuckets(FAILED_HELLOS_PER_S, FAILED_HELLOS_BURST)
        self._unknown_keys = TokenBucket(UNKNOWN_KEYS_PER_S, UNKNOWN_KEYS_PER_S)
        self._replaced_at: dict[str, deque[float]] = {}
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
            if slot.link:
                yield address, slot.link

    def admitted(self) -> set[bytes]:
        """Addresses whose Hello verified: with a link, or a handshake under way."""
        return set(self._slots)

    @property
    def half_open(self) -> int:
        return sum(slot.half_open is not None for slot in self._slots.values())

    def events(self) -> list[tuple[bytes, LinkEvent]]:
        """What happened since the last call, with its address, in order."""
        for address in list(self._slots):
            self._settle(address)
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
            peer_key: what failed Hellos are counted by (a network address); the return address
                when there is nothing better.
        """
        self._now = now
        try:
            frame = parse_frame(data)
        except DecodeError:
            self.ignored_frames += 1
            return
        if frame.kind is FrameKind.HELLO:
            self._on_hello(address, frame, now, peer_key)
            return
        slot = self._slots.get(address, _Slot())
        for endpoint in slot.endpoints():
            if endpoint.link_id == frame.link_id:
                endpoint.receive_frame(frame, now)
                self._settle(address)
                return
        if frame.kind in SEALED_KINDS:
            self._answer(address, pack_header(FrameKind.STALE, frame.link_id))
        else:
            self.ignored_frames += 1

    def _on_hello(self, address: bytes, frame: Frame, now: float, peer_key: bytes | None) -> None:
        failures = self._failures.bucket(peer_key or address)
        host = (peer_key or b"").decode(errors="replace")
        known = self._slots.get(address, _Slot()).endpoints()
        if any(endpoint.link_id == frame.link_id for endpoint in known):
            self.ignored_frames += 1
            return
        if not failures.available(now):
            self.ignored_frames += 1
            return
        endpoint = Endpoint(
            self.identity,
            initiator=False,
            entropy=self._entropy,
            limits=self.limits,
            heartbeat=self._heartbeat,
            admit=lambda peer: self._admit(replace(peer, host=host)),
        )
        endpoint.receive_frame(frame, now)
        self._events += [(address, event) for event in endpoint.events()]
        if endpoint.state == "confirming":
            self._open_half(address, endpoint)
            return
        failures.take(now)
        while reject := endpoint.next_frame():
            self._answer(address, reject)

    def _open_half(self, address: bytes, endpoint: Endpoint) -> None:
        slot = self._slots.pop(address, None) or _Slot()
        slot.half_open = endpoint
        self._slots[address] = slot
        if self.half_open <= MAX_HALF_OPEN:
            return
        oldest = next(found for found, slot in self._slots.items() if slot.half_open)
        cut = self._slots[oldest].half_open
        self._slots[oldest].half_open = None
        reason = f"more than {MAX_HALF_OPEN} handshakes at once; the oldest was cut"
        peer = cut.peer if cut else None
        self._events.append(
            (oldest, PeerRefused(Refusal.TOO_MANY_HANDSHAKES.text, reason, peer=peer))
        )
        self._forget_if_empty(oldest)

    def _answer(self, address: bytes, frame: bytes) -> None:
        if len(self._answers) < MAX_ANSWERS:
            self._answers.append((address, frame))

    # --- who may link -------------------------------------------------------------------------

    def _admit(self, peer: PeerInfo) -> None:
        """Every check of a Hello that verified under its token, cheapest first."""
        known = self._guard.knows(peer.public)
        self._guard.check(peer)
        for _, link in self.links():
            self._check_against(peer, link.peer)
        if self._replacements(peer.name) >= MAX_REPLACEMENTS:
            raise HandshakeRefused(
                Refusal.IDENTITY_IN_USE,
                f"the link of {peer.role} {peer.name} was replaced {MAX_REPLACEMENTS} times in a "
                "minute: two processes share its state folder; stop one of them",
            )
        self._admit_more(peer)
        if not known and not self._unknown_keys.take(self._now):
            raise HandshakeRefused(
                Refusal.TOO_MANY_HANDSHAKES,
                f"more than {UNKNOWN_KEYS_PER_S:g} unknown keys a second; it is tried again",
            )

    def _check_against(self, peer: PeerInfo, other: PeerInfo | None) -> None:
        """Refuse a peer that can not be there beside another one."""
        if other is None or other.public == peer.public:
            return
        if other.name == peer.name:
            raise HandshakeRefused(
                Refusal.IDENTITY_IN_USE,
                f"identity in use: {peer.role} {peer.name} is linked with the key "
                f"{other.fingerprint}, and another one came with {peer.fingerprint}; "
                "stop one of them, or give it another identity",
            )
        if self.identity.role == "node":
            raise HandshakeRefused(
                Refusal.NODE_TAKEN,
                f"head {peer.name} wants this node, which serves head {other.name}; "
                "take it from that head first",
            )

    def _replacements(self, name: str) -> int:
        """How often this identity's link was replaced in the last minute."""
        times = self._replaced_at.get(name)
        while times and times[0] <= self._now - REPLACEMENT_WINDOW_S:
            times.popleft()
        if not times:
            self._replaced_at.pop(name, None)
        return len(times or ())

    def _settle(self, address: bytes) -> None:
        """Collect an address's events; a handshake that came up takes its place."""
        slot = self._slots.get(address)
        if slot is None:
            return
        for endpoint in slot.endpoints():
            for event in endpoint.events():
                if not isinstance(event, LinkUp) or self._promote(
                    address, slot, endpoint, event.peer
                ):
                    self._events.append((address, event))
        if slot.half_open and slot.half_open.state == "down":
            slot.half_open = None
        self._forget_if_empty(address)

    def _promote(self, address: bytes, slot: _Slot, endpoint: Endpoint, peer: PeerInfo) -> bool:
        """A peer confirmed: its older links end now, before anything of the new one is seen.

        False when another peer was faster and this one has to go.
        """
        others = [(where, link) for where, link in self.links() if where != address]
        try:
            for _, link in others:
                self._check_against(peer, link.peer)
        except HandshakeRefused as error:
            endpoint.close(error.message, self._now)
            endpoint.events()
            self._send_last_words(address, endpoint)
            refused = PeerRefused(error.refusal.text, error.message, peer=peer)
            self._events.append((address, refused))
            return False
        for where, link in others:
            if link.peer and link.peer.name == peer.name:
                self._replace(where, link, peer)
                self._replaced_at.setdefault(peer.name, deque()).append(self._now)
        if slot.link:
            self._replace(address, slot.link, peer)
            self._send_last_words(address, slot.link)
        slot.link, slot.half_open = endpoint, None
        return True

    def _replace(self, address: bytes, link: Endpoint, peer: PeerInfo) -> None:
        link.replace(f"{peer.role} {peer.name} linked again", self._now)
        self._events += [(address, event) for event in link.events()]

    def _send_last_words(self, address: bytes, endpoint: Endpoint) -> None:
        while (frame := endpoint.next_frame()) is not None:
            self._answer(address, frame)

    def _forget_if_empty(self, address: bytes) -> None:
        slot = self._slots[address]
        if slot.link and slot.link.state == "down" and not slot.link.queued_bytes:
            slot.link = None
        if not slot.endpoints():
            del self._slots[address]

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
        for address, slot in list(self._slots.items()):
            if slot.blocked_until > self._now:
                continue
            for endpoint in slot.endpoints():
                frame = endpoint.next_frame(self._now)
                if frame is not None:
                    frames.append((address, frame))
                    self._offered[address] = endpoint
                    break
            else:
                self._settle(address)
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
        """When to call `handle_timeout`, or None."""
        times = [
            time
            for slot in self._slots.values()
            for endpoint in slot.endpoints()
            if (time := endpoint.next_timeout()) is not None
        ]
        times += [slot.blocked_until for slot in self._slots.values() if slot.blocked_until]
        return min(times, default=None)

    def handle_timeout(self, now: float) -> None:
        """Do what is due. Call after every frame that was readable has been received."""
        self._now = now
        for address, slot in list(self._slots.items()):
            if slot.blocked_until <= now:
                slot.blocked_until = 0.0
            for endpoint in slot.endpoints():
                endpoint.handle_timeout(now)
            self._settle(address)
