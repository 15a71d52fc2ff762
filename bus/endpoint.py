"""One link to one peer, without sockets or clock: frames and `now` in, frames and events out.

    initiator:  down --connect--> connecting --HelloAck--> confirming --Confirm--> up --> down
    responder:        connecting ----Hello----> confirming ----Confirm----> up --> down
                                                         Confirm -> held -> accept

A responder may hold a peer that confirmed until its owner accepts or refuses it.
The owner feeds `receive`, calls `handle_timeout` when `next_timeout` is reached, drains `events`,
and sends what `next_frame` gives. A frame gets its counter and its seal only inside `next_frame`;
one that the socket refused is handed back with `frame_refused` and comes again, unchanged, before
anything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from bus.crypto import Entropy
from bus.errors import DecodeError, WireError
from bus.frames import Frame, FrameKind, parse_frame
from bus.handshake import Admission, Established
from bus.handshake_steps import HandshakeStep, Handshaking, State
from bus.hello_guard import HelloGuard
from bus.link import (
    LinkDown,
    LinkEvent,
    LinkFault,
    LinkIdentity,
    LinkLimits,
    LinkUp,
    MessageReceived,
    PeerConfirmed,
    PeerInfo,
    PeerRefused,
    Refusal,
    goodbye_text,
)
from bus.messages.link import LINK, Goodbye, HeadConfirm, Heartbeat, NodeConfirm
from bus.outbox import Outbox
from bus.sealed_link import SealedLink
from bus.self_suspicion import SelfSuspicion

_HANDSHAKE_KINDS = frozenset({FrameKind.HELLO, FrameKind.HELLO_ACK, FrameKind.REJECT})


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
        holds: whether a responder asks its owner (`PeerConfirmed`) before it comes up.
        suspicion: shared by all links of the process.
        on_change: called when there may be something to send, an event, or an earlier timeout.
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
        holds: bool = False,
        suspicion: SelfSuspicion | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.identity = identity
        self.initiator = initiator
        self.limits = limits or LinkLimits()
        self.heartbeat = heartbeat
        self._entropy = entropy
        if admit is None:
            admit = (lambda _: None) if initiator else HelloGuard(lambda _: None).check
        self._handshaking = Handshaking(
            identity, initiator=initiator, entropy=entropy, limits=self.limits, admit=admit
        )
        self._redial = self._handshaking.redial
        self._state: State = "down" if initiator else "connecting"
        self._now = 0.0
        self._events: deque[LinkEvent] = deque()
        self._outbox = Outbox(on_change)
        self._link: SealedLink | None = None
        self._confirm: NodeConfirm | HeadConfirm | None = None
        self._holds = holds
        self._suspicion = suspicion or SelfSuspicion()
        self._on_change = on_change
        self._busy = False
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
    def retry_at(self) -> float | None:
        """When the next Hello goes out after a refusal; None when none was refused."""
        return self._redial.due_at if self._redial.waits else None

    @property
    def rejects(self) -> int:
        """Refusals in a row that made the waits longer."""
        return self._redial.rejects

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return self._outbox.queued_bytes

    def events(self) -> list[LinkEvent]:
        """What happened since the last call, in order."""
        events = list(self._events)
        self._events.clear()
        return events

    @property
    def link(self) -> SealedLink | None:
        """What the handshake made, to probe the peer or change keys; None when there is none."""
        return self._link

    def set_busy(self, busy: bool) -> None:
        """Heartbeats every second while a generation is live."""
        if busy == self._busy:
            return
        self._busy = busy
        if self._link:
            self._link.set_busy(busy)
            self._on_change()

    # --- sending ------------------------------------------------------------------------------

    def send(self, message: Any) -> bool:
        """Queue a message by its priority; False when no link is up (nothing is queued then).

        Raises:
            TooLarge: it is longer than any message may be.
        """
        if self._state != "up":
            return False
        self._outbox.put_message(message)
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
        if frame is not None and self._link:
            self._link.sent(self._now)
        return frame

    def frame_refused(self) -> None:
        """The socket did not take the last frame: it is the next one again, unchanged."""
        self._outbox.frame_refused()

    # --- starting and ending ------------------------------------------------------------------

    def connect(self, now: float, rejects: int = 0) -> None:
        """Begin a handshake (initiator only); an older one or a link that is up is given up.

        Args:
            rejects: of an earlier endpoint to the same peer, whose waits go on to grow.
        """
        if not self.initiator:
            raise WireError("a responder waits for Hello; only an initiator connects")
        self._now = now
        if self._state == "up":
            self._end("disconnected", "the connection was made again", say=False)
        self._drop_link()
        self._handshaking.begin(now, rejects)
        self._state = "connecting"
        self._say_hello(now)

    def accept(self, now: float) -> None:
        """Let a peer that is held come up."""
        self._now = now
        if self._state == "held" and self._link and self._confirm:
            self._come_up(self._link, self._confirm)

    def refuse(self, refusal: Refusal, reason: str, now: float) -> None:
        """Turn a peer that is held away; it reads the reason in a sealed Goodbye."""
        self._now = now
        if self._state == "held":
            self._events.append(PeerRefused(refusal.text, reason, peer=self.peer))
            self._drop_link(_goodbye(refusal.text, reason))
            self._state = "down"

    def _say_hello(self, now: float) -> None:
        # An older Hello that still waits would only be answered for nothing.
        self._outbox.drop_hello()
        self._outbox.put_frame(self._redial.hello(now))

    def close(self, reason: str, now: float) -> None:
        """End the link on purpose: what waited is dropped, a Goodbye goes out if it is up."""
        self._stop("goodbye", reason, now, event_code="closed")

    def replace(self, reason: str, now: float) -> None:
        """Another link of the same peer took this one's place."""
        self._stop("replaced", reason, now)

    def _stop(self, code: str, reason: str, now: float, event_code: str | None = None) -> None:
        self._now = now
        if self._state == "up":
            self._end(code, reason, event_code=event_code)
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

    def _drop_link(self, last_words: bytes | None = None) -> None:
        self._outbox.close(last_words)
        self._handshaking.ended()
        if self._link:
            self._link.close()
        self._link = self._confirm = None

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
        self._drop_link(_goodbye(code, reason) if say else None)
        self._state = "down"
        self._events.append(LinkDown(event_code or code, reason, by_peer))
        self._on_change()

    def _fail(self, code: str, reason: str, *, say: bool = True, by_peer: bool = False) -> None:
        """The link, or the handshake that should make one, can not go on."""
        if self._state == "up":
            self._end(code, reason, say=say, by_peer=by_peer)
            return
        self._events.append(PeerRefused(code, reason, by_peer, self.peer))
        self._drop_link()
        if self.initiator:
            self._state = "connecting"
            self._handshaking.refused(self._now, code)
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
        if frame.kind in _HANDSHAKE_KINDS:
            step = self._handshaking.receive(frame, self._state, self.link_id)
            if step is not None:
                self.take_step(step, now)
            else:
                self.ignored_frames += 1
        elif self._link is None or frame.link_id != self._link.link_id:
            self.ignored_frames += 1
        elif frame.kind is FrameKind.STALE:
            self._take(self._link.stale(now), self._link)
        else:
            self._take(self._link.receive(frame, now), self._link)
        self._on_change()

    def take_step(self, step: HandshakeStep, now: float) -> None:
        """Go on with what a handshake frame led to; one that was accepted before stays."""
        self._now = now
        if step.made is not None and not self.initiator:
            self._drop_link()
        if step.made is not None:
            self._enter_confirming(step.made)
        if step.reply is not None:
            self._outbox.put_frame(step.reply)
        if step.refused is not None and (self.initiator or step.refused.by_peer):
            self._fail(step.refused.code, step.refused.reason, by_peer=step.refused.by_peer)
        elif step.refused is not None:
            self._events.append(step.refused)
        self._on_change()

    def _enter_confirming(self, made: Established) -> None:
        self._link = SealedLink(
            made,
            self.identity,
            initiator=self.initiator,
            entropy=self._entropy,
            limits=self.limits,
            outbox=self._outbox,
            heartbeat=lambda: self.heartbeat(),
            suspicion=self._suspicion,
        )
        self._state = "confirming"
        self._handshaking.made(self._now)
        if self.initiator:
            self._link.queue_confirm()

    def _take(self, message: Any | LinkFault | None, link: SealedLink) -> None:
        if message is None:
            return
        if isinstance(message, LinkFault):
            say = message.code != "stale" and not message.by_peer
            self._fail(message.code, message.reason, say=say, by_peer=message.by_peer)
        elif self._state == "up":
            self._events.append(MessageReceived(message))
        elif self._holds:
            self._state, self._confirm = "held", message
            self._handshaking.confirmed()
            self._events.append(PeerConfirmed(link.peer))
        else:
            self._come_up(link, message)

    def _come_up(self, link: SealedLink, confirm: NodeConfirm | HeadConfirm) -> None:
        if not self.initiator:
            link.queue_confirm()
        self._state, self._confirm = "up", None
        self._handshaking.ended()
        link.come_up(self._now, busy=self._busy)
        self._events.append(LinkUp(link.peer, confirm))
        self._on_change()

    # --- time ---------------------------------------------------------------------------------

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`, or None."""
        times = [self._handshaking.next_timeout()]
        if self._link:
            times.append(self._link.next_timeout())
        return min((time for time in times if time is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """Do what is due. Call after every frame that was readable has been received."""
        self._now = now
        if refused := self._handshaking.timed_out(now, self._peer_name()):
            if self._state == "confirming":
                self._fail(refused.code, refused.reason, say=False)
            else:
                self._events.append(refused)
        if self._redial.due_at is not None and now >= self._redial.due_at:
            self._say_hello(now)
        if self._link:
            self._take(self._link.handle_timeout(now), self._link)
        self._on_change()

    def _peer_name(self) -> str:
        return f"{self.peer.role} {self.peer.name}" if self.peer else self.identity.peer_name


def _goodbye(code: str, reason: str) -> bytes:
    return LINK.encode(Goodbye(reason=goodbye_text(code, reason)))
