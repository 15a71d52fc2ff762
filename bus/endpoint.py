"""One link to one peer, without sockets or clock: frames and `now` in, frames and events out.

    initiator:  down --connect--> connecting --HelloAck--> confirming --Confirm--> up --> down
    responder:        connecting ----Hello----> confirming ----Confirm----> up --> down

The owner feeds `receive`, calls `handle_timeout` when `next_timeout` is reached, drains `events`,
and sends what `next_frame` gives. A frame gets its counter and its seal only inside `next_frame`;
one that the socket refused is handed back with `frame_refused` and comes again, unchanged, before
anything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from bus.crypto import Entropy
from bus.errors import AuthError, DecodeError, TooLarge, WireError
from bus.frames import Frame, FrameKind, PartJoiner, parse_frame
from bus.handshake import (
    Admission,
    Established,
    HelloGuard,
    answer_hello,
    explain_reject,
    pack_reject,
)
from bus.link import (
    HandshakeRefused,
    LinkDown,
    LinkEvent,
    LinkIdentity,
    LinkLimits,
    LinkUp,
    MessageReceived,
    PeerInfo,
    PeerRefused,
    Refusal,
    goodbye_text,
    read_goodbye,
)
from bus.liveness import Liveness
from bus.messages.link import LINK, MAX_MESSAGE_BYTES, Goodbye, HeadConfirm, Heartbeat, NodeConfirm
from bus.outbox import Outbox
from bus.redial import Redial

State = Literal["connecting", "confirming", "up", "down"]


class Endpoint:
    """One link to one peer. Driven by one owner, who also owns the socket.

    Args:
        identity: ours.
        initiator: whether this side connects and sends Hello.
        entropy: gives link ids, ephemeral keys and jitter.
        limits: times and sizes.
        heartbeat: the content of the next heartbeat.
        admit: checks the peer: a responder's before it answers, an initiator's before it
            confirms. By default a responder takes a Hello that is newer than the last one of its
            key, and an initiator everybody whose key fits.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        *,
        initiator: bool,
        entropy: Entropy,
        limits: LinkLimits | None = None,
        heartbeat: Callable[[], Heartbeat] = Heartbeat,
        admit: Admission | None = None,
    ) -> None:
        self.identity = identity
        self.initiator = initiator
        self.limits = limits or LinkLimits()
        self.heartbeat = heartbeat
        self._entropy = entropy
        if admit is None:
            admit = (lambda _: None) if initiator else HelloGuard(lambda _: None).check
        self._admit = admit
        self._state: State = "down" if initiator else "connecting"
        self._now = 0.0
        self._events: deque[LinkEvent] = deque()
        self._outbox = Outbox()
        self._link: Established | None = None
        self._joiner = PartJoiner()
        self._liveness: Liveness | None = None
        self._busy = False
        self._redial = Redial(identity, entropy, self.limits)
        self._deadline: float | None = None
        #: Frames that nothing was done with: malformed, or of no link of ours.
        self.ignored_frames = 0

    # --- what the owner sees ------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state

    @property
    def peer(self) -> PeerInfo | None:
        """The peer of the current handshake or link."""
        return self._link.peer if self._link else None

    @property
    def link_id(self) -> int | None:
        return self._link.link_id if self._link else None

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return self._outbox.queued_bytes

    def events(self) -> list[LinkEvent]:
        """What happened since the last call, in order."""
        events = list(self._events)
        self._events.clear()
        return events

    def set_busy(self, busy: bool) -> None:
        """Heartbeats every second while a generation is live."""
        self._busy = busy
        if self._liveness:
            self._liveness.set_busy(busy)

    # --- sending ------------------------------------------------------------------------------

    def send(self, message: Any) -> bool:
        """Queue a message by its priority; False when no link is up (nothing is queued then).

        Raises:
            TooLarge: it is longer than any message may be.
        """
        if self._state != "up":
            return False
        data = LINK.encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise TooLarge(
                f"a {type(message).__name__} of {len(data)} bytes; {MAX_MESSAGE_BYTES} is the most"
            )
        self._outbox.put(FrameKind.DATA, LINK.priority(message), data)
        waiting = self._outbox.message_bytes
        if waiting > self.limits.max_queued_bytes:
            self._end("queue_full", f"{self._peer_name()} takes nothing; {waiting} bytes wait")
            return False
        return True

    def next_frame(self, now: float | None = None) -> bytes | None:
        """The frame to hand to the socket now, or None.

        Args:
            now: without it the last `now` counts, and a heartbeat may go out early.
        """
        self._now = self._now if now is None else now
        try:
            frame = self._outbox.next_frame()
        except WireError as error:
            self._end("counter", error.message, say=False)
            return None
        if frame is not None and self._liveness:
            self._liveness.sent(self._now)
        return frame

    def frame_refused(self) -> None:
        """The socket did not take the last frame: it is the next one again, unchanged."""
        self._outbox.frame_refused()

    # --- starting and ending ------------------------------------------------------------------

    def connect(self, now: float) -> None:
        """Begin a handshake (initiator only); an older one or a link that is up is given up."""
        if not self.initiator:
            raise WireError("a responder waits for Hello; only an initiator connects")
        self._now = now
        if self._state == "up":
            self._end("disconnected", "the connection was made again", say=False)
        self._drop_link()
        self._redial.reset()
        self._state = "connecting"
        self._deadline = now + self.limits.handshake_s
        self._say_hello(now)

    def _say_hello(self, now: float) -> None:
        # An older Hello that still waits would only be answered for nothing.
        self._outbox.drop_hello()
        self._outbox.put_frame(self._redial.hello(now))

    def close(self, reason: str, now: float) -> None:
        """End the link on purpose: what waited is dropped, a Goodbye goes out if it is up."""
        self._now = now
        if self._state == "up":
            self._end("goodbye", reason, event_code="closed")
        else:
            self._drop_link()
            self._state = "down"

    def disconnected(self, reason: str, now: float) -> None:
        """The connection is gone: nothing can be sent; an initiator waits for `connect`."""
        self._now = now
        if self._state == "up":
            self._end("disconnected", reason, say=False)
        elif self._link or self._redial.pending:
            text = f"{self._peer_name()} closed the connection at the handshake: {reason}"
            self._events.append(PeerRefused("connection_closed", text, peer=self.peer))
        self._drop_link()
        self._outbox.drop_all()
        self._state = "down"

    def replace(self, reason: str, now: float) -> None:
        """Another link of the same peer took this one's place."""
        self._now = now
        if self._state == "up":
            self._end("replaced", reason)
        else:
            self._drop_link()
            self._state = "down"

    def _drop_link(self, last_words: bytes | None = None) -> None:
        self._outbox.close(last_words)
        self._redial.answered()
        self._link = self._liveness = self._deadline = None
        self._joiner = PartJoiner()

    def _end(
        self,
        code: str,
        reason: str,
        *,
        say: bool = True,
        by_peer: bool = False,
        event_code: str | None = None,
    ) -> None:
        """End a link that is up; `say` tells the peer in a sealed Goodbye."""
        goodbye = Goodbye(reason=goodbye_text(code, reason))
        self._drop_link(LINK.encode(goodbye) if say else None)
        self._state = "down"
        self._events.append(LinkDown(event_code or code, reason, by_peer))

    def _fail(self, code: str, reason: str, *, say: bool = True, by_peer: bool = False) -> None:
        """The link, or the handshake that should make one, can not go on."""
        if self._state == "up":
            self._end(code, reason, say=say, by_peer=by_peer)
            return
        self._events.append(PeerRefused(code, reason, by_peer, self.peer))
        self._drop_link()
        if self.initiator:
            self._state = "connecting"
            self._deadline = self._now + self.limits.handshake_s
            self._redial.refused(self._now, token=code == Refusal.TOKEN_REFUSED.text)
        else:
            self._state = "down"

    # --- receiving ----------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take one frame from the socket; whatever it holds, only events tell."""
        try:
            frame = parse_frame(data)
        except DecodeError:
            self.ignored_frames += 1
            return
        self.receive_frame(frame, now)

    def receive_frame(self, frame: Frame, now: float) -> None:
        """Take one frame that is parsed already."""
        self._now = now
        if frame.kind is FrameKind.HELLO:
            self._on_hello(frame)
        elif frame.kind is FrameKind.HELLO_ACK:
            self._on_hello_ack(frame)
        elif frame.kind is FrameKind.REJECT:
            self._on_reject(frame)
        elif self._link is None or frame.link_id != self._link.link_id:
            self.ignored_frames += 1
        elif frame.kind is FrameKind.STALE:
            self._fail("stale", f"{self._peer_name()} does not know this link any more", say=False)
        else:
            self._on_sealed(frame, self._link)

    def _on_hello(self, frame: Frame) -> None:
        duplicate = self._link is not None and self._link.link_id == frame.link_id
        if self.initiator or self._state == "up" or duplicate:
            self.ignored_frames += 1
            return
        try:
            ack, link = answer_hello(self.identity, frame, self._entropy, self._admit)
        except HandshakeRefused as error:
            self._refuse(frame.link_id, error.refusal, error.message)
        except (AuthError, DecodeError) as error:
            reason = f"a Hello was refused: {error.message}; compare the fleet tokens"
            self._refuse(frame.link_id, Refusal.HANDSHAKE_FAILED, reason)
        else:
            self._drop_link()
            self._outbox.put_frame(ack)
            self._enter_confirming(link)

    def _refuse(self, link_id: int, refusal: Refusal, reason: str) -> None:
        """Refuse a Hello; one that was accepted before stays."""
        self._outbox.put_frame(pack_reject(self.identity, link_id, refusal))
        self._events.append(PeerRefused(refusal.text, reason))

    def _on_hello_ack(self, frame: Frame) -> None:
        pending = self._redial.pending
        if pending is None or pending.link_id != frame.link_id:
            self.ignored_frames += 1
            return
        try:
            link = pending.read_ack(frame)
            self._admit(link.peer)
        except HandshakeRefused as error:
            self._outbox.put_frame(pack_reject(self.identity, frame.link_id, error.refusal))
            self._fail(error.refusal.text, error.message)
        except (AuthError, DecodeError) as error:
            reason = f"the answer of {self._peer_name()} does not verify: {error.message}"
            self._fail(Refusal.HANDSHAKE_FAILED.text, reason)
        else:
            self._redial.answered()
            self._enter_confirming(link)
            self._queue_confirm()

    def _enter_confirming(self, link: Established) -> None:
        self._link = link
        self._outbox.open(link.sealer)
        self._state = "confirming"
        confirm_by = self._now + self.limits.confirm_s
        self._deadline = min(confirm_by, self._deadline or confirm_by)

    def _queue_confirm(self) -> None:
        self._outbox.put(FrameKind.CONFIRM, 0, LINK.encode(self.identity.confirm()))

    def _on_reject(self, frame: Frame) -> None:
        pending = self._redial.pending
        token = None
        if pending is not None and pending.link_id == frame.link_id:
            token = pending.token
        elif self.initiator or self._state != "confirming" or self.link_id != frame.link_id:
            self.ignored_frames += 1
            return
        try:
            refusal, reason = explain_reject(self.identity, token, frame)
        except DecodeError:
            self.ignored_frames += 1
            return
        self._fail(refusal.text, reason, by_peer=True)

    def _on_sealed(self, frame: Frame, link: Established) -> None:
        expected = FrameKind.CONFIRM if self._state == "confirming" else FrameKind.DATA
        try:
            part = link.opener.open(frame)
            if part is None:
                return
            if self._liveness:
                self._liveness.heard(self._now)
            if frame.kind is not expected:
                raise DecodeError(f"a {frame.kind.name} frame while the link is {self._state}")
            whole = self._joiner.add(frame.channel, part, more=frame.more)
            message = LINK.decode(whole) if whole is not None else None
        except AuthError as error:
            self._fail("auth", f"{self._peer_name()}: {error.message}")
        except DecodeError as error:
            self._fail("decode", f"{self._peer_name()} sent what is no message: {error.message}")
        except WireError as error:
            self._fail("gap", f"{self._peer_name()}: {error.message}")
        else:
            if message is not None:
                self._on_message(message, link.peer)

    def _on_message(self, message: Any, peer: PeerInfo) -> None:
        is_confirm = isinstance(message, NodeConfirm | HeadConfirm)
        if self._state == "confirming":
            self._on_confirm(message, peer)
        elif is_confirm:
            self._fail("protocol", f"{self._peer_name()} confirmed a link twice")
        elif isinstance(message, Goodbye):
            code, reason = read_goodbye(message.reason)
            self._end(
                code, f"{self._peer_name()} ended the link: {reason}", say=False, by_peer=True
            )
        else:
            self._events.append(MessageReceived(message))

    def _on_confirm(self, message: Any, peer: PeerInfo) -> None:
        boot = None
        if peer.role == "node" and isinstance(message, NodeConfirm):
            boot = message.incarnation
        elif peer.role == "head" and isinstance(message, HeadConfirm):
            boot = message.boot
        if boot != peer.incarnation or message.identity != peer.name:
            self._fail("protocol", f"{self._peer_name()} confirmed as somebody else")
            return
        if not self.initiator:
            self._queue_confirm()
        self._state = "up"
        self._deadline = None
        self._redial.reset()
        self._liveness = Liveness(
            self._now,
            heartbeat_s=self.limits.heartbeat_s,
            busy_heartbeat_s=self.limits.busy_heartbeat_s,
            silence_s=self.limits.silence_s,
        )
        self._liveness.set_busy(self._busy)
        self._events.append(LinkUp(peer, message))

    # --- time ---------------------------------------------------------------------------------

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`, or None."""
        times = [self._redial.due_at, self._deadline]
        if self._liveness:
            times.append(self._liveness.next_timeout())
        return min((time for time in times if time is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """Do what is due. Call after every frame that was readable has been received."""
        self._now = now
        if self._deadline is not None and now >= self._deadline:
            self._handshake_timed_out(now)
        if self._redial.due_at is not None and now >= self._redial.due_at:
            self._say_hello(now)
        if self._liveness is None:
            return
        if self._liveness.lost(now):
            silence_s = self.limits.silence_s
            self._end("silent", f"nothing from {self._peer_name()} for {silence_s:g} s")
        elif self._liveness.heartbeat_due(now):
            self._liveness.sent(now)
            if not self._outbox.holds_back(0):
                self.send(self.heartbeat())

    def _handshake_timed_out(self, now: float) -> None:
        name = self._peer_name()
        if self._state == "confirming":
            self._fail("handshake_timeout", f"{name} did not confirm the link in time", say=False)
            return
        limit_s = self.limits.handshake_s
        text = f"{name} did not finish the handshake within {limit_s:g} s; is one listening there?"
        self._events.append(PeerRefused("handshake_timeout", text))
        self._deadline = now + limit_s

    def _peer_name(self) -> str:
        return f"{self.peer.role} {self.peer.name}" if self.peer else self.identity.peer_name
