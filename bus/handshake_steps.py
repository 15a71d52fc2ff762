"""Steps of a handshake with all that can come of them, for whoever drives it: nothing raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bus.crypto import Entropy
from bus.errors import AuthError, DecodeError
from bus.frames import Frame, FrameKind
from bus.handshake import (
    Admission,
    Established,
    InitiatorHandshake,
    answer_hello,
    explain_reject,
    pack_reject,
)
from bus.keys import FleetToken
from bus.link import HandshakeRefused, LinkIdentity, LinkLimits, PeerRefused, Refusal
from bus.redial import Redial

State = Literal["connecting", "confirming", "held", "up", "down"]


@dataclass(frozen=True, slots=True)
class HandshakeStep:
    """What a handshake frame led to.

    Attributes:
        made: the link that is to be confirmed; None: refused.
        reply: a frame to send.
        refused: why not.
    """

    made: Established | None = None
    reply: bytes | None = None
    refused: PeerRefused | None = None


def take_hello(
    identity: LinkIdentity, frame: Frame, entropy: Entropy, admit: Admission
) -> HandshakeStep:
    """A responder's step: HelloAck, or a Reject."""
    try:
        ack, made = answer_hello(identity, frame, entropy, admit)
    except HandshakeRefused as error:
        return _refuse(identity, frame, error.refusal, error.message)
    except (AuthError, DecodeError) as error:
        reason = f"a Hello was refused: {error.message}; compare the fleet tokens"
        return _refuse(identity, frame, Refusal.HANDSHAKE_FAILED, reason)
    return HandshakeStep(made, ack)


class Handshaking:
    """The handshakes of one endpoint, one after the other, and how long each may take.

    Args:
        identity: ours.
        initiator: whether this side says Hello.
        entropy: gives link ids, ephemeral keys and jitter.
        limits: bounds of the waits.
        admit: checks the peer.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        *,
        initiator: bool,
        entropy: Entropy,
        limits: LinkLimits,
        admit: Admission,
    ) -> None:
        self.redial = Redial(identity, entropy, limits)
        self._limits = limits
        #: When the handshake has taken too long; None when none is under way.
        self._deadline: float | None = None
        self._identity = identity
        self._initiator = initiator
        self._entropy = entropy
        self._admit = admit

    # --- time ---------------------------------------------------------------------------------

    def begin(self, now: float, rejects: int) -> None:
        """An initiator connects; after so many refusals in a row."""
        self.redial.reset(rejects)
        self._deadline = now + self._limits.handshake_s

    def made(self, now: float) -> None:
        """The peer has to confirm from now on."""
        confirm_by = now + self._limits.confirm_s
        self._deadline = min(confirm_by, self._deadline or confirm_by)

    def refused(self, now: float, code: str) -> None:
        """It led to nothing; an initiator tries again, and its time begins with the next Hello."""
        self.redial.refused(now, code)
        self._deadline = (self.redial.due_at or now) + self._limits.handshake_s

    def confirmed(self) -> None:
        """The peer has done its part."""
        self._deadline = None

    def ended(self) -> None:
        """No handshake is under way, and no Hello is due."""
        self.redial.answered()
        self._deadline = None

    def next_timeout(self) -> float | None:
        """When a Hello is due, or `timed_out` will be true."""
        times = [time for time in (self.redial.due_at, self._deadline) if time is not None]
        return min(times, default=None)

    def timed_out(self, now: float, peer_name: str) -> PeerRefused | None:
        """That it has taken too long, once; then it has as much time again."""
        if self._deadline is None or now < self._deadline:
            return None
        limit_s = self._limits.handshake_s
        self._deadline = now + limit_s
        return PeerRefused(
            "handshake_timeout",
            f"{peer_name} did not confirm the link in time"
            if self.redial.pending is None
            else f"{peer_name} did not finish the handshake within {limit_s:g} s; is one listening "
            "there?",
        )

    # --- frames -------------------------------------------------------------------------------

    def receive(self, frame: Frame, state: State, link_id: int | None) -> HandshakeStep | None:
        """Take a Hello, HelloAck or Reject; None: nothing is to be done with it.

        Args:
            frame: of one of these kinds.
            state: of the endpoint.
            link_id: of its handshake or link.
        """
        if frame.kind is FrameKind.HELLO:
            if self._initiator or state == "up" or link_id == frame.link_id:
                return None
            return take_hello(self._identity, frame, self._entropy, self._admit)
        pending = self.redial.pending
        ours = pending if pending is not None and pending.link_id == frame.link_id else None
        if frame.kind is FrameKind.HELLO_ACK:
            return self._take_ack(ours, frame) if ours is not None else None
        waits = not self._initiator and state == "confirming" and link_id == frame.link_id
        if ours is None and not waits:
            return None
        return self._take_reject(ours.token if ours is not None else None, frame)

    def _take_ack(self, pending: InitiatorHandshake, frame: Frame) -> HandshakeStep:
        try:
            made = pending.read_ack(frame)
            self._admit(made.peer)
        except HandshakeRefused as error:
            return _refuse(self._identity, frame, error.refusal, error.message)
        except (AuthError, DecodeError) as error:
            name = self._identity.peer_name
            reason = f"the answer of {name} does not verify: {error.message}"
            return HandshakeStep(refused=PeerRefused(Refusal.HANDSHAKE_FAILED.text, reason))
        self.redial.answered()
        return HandshakeStep(made)

    def _take_reject(self, token: FleetToken | None, frame: Frame) -> HandshakeStep | None:
        try:
            refusal, reason = explain_reject(self._identity, token, frame)
        except DecodeError:
            return None
        return HandshakeStep(refused=PeerRefused(refusal.text, reason, by_peer=True))


def _refuse(identity: LinkIdentity, frame: Frame, refusal: Refusal, reason: str) -> HandshakeStep:
    reject = pack_reject(identity, frame.link_id, refusal)
    return HandshakeStep(reply=reject, refused=PeerRefused(refusal.text, reason))
