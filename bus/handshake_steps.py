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
    """The handshakes of one endpoint, one after the other.

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
        self._identity = identity
        self._initiator = initiator
        self._entropy = entropy
        self._admit = admit

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
