"""One step of a handshake with all that can come of it, for whoever drives it: nothing raises."""

from __future__ import annotations

from dataclasses import dataclass

from bus.crypto import Entropy
from bus.errors import AuthError, DecodeError
from bus.frames import Frame
from bus.handshake import (
    Admission,
    Established,
    InitiatorHandshake,
    answer_hello,
    explain_reject,
    pack_reject,
)
from bus.keys import FleetToken
from bus.link import HandshakeRefused, LinkIdentity, PeerRefused, Refusal


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


def take_ack(
    identity: LinkIdentity, pending: InitiatorHandshake, frame: Frame, admit: Admission
) -> HandshakeStep:
    """An initiator's step: nothing to send before Confirm, or a Reject."""
    try:
        made = pending.read_ack(frame)
        admit(made.peer)
    except HandshakeRefused as error:
        return _refuse(identity, frame, error.refusal, error.message)
    except (AuthError, DecodeError) as error:
        reason = f"the answer of {identity.peer_name} does not verify: {error.message}"
        return HandshakeStep(refused=PeerRefused(Refusal.HANDSHAKE_FAILED.text, reason))
    return HandshakeStep(made)


def take_reject(
    identity: LinkIdentity, token: FleetToken | None, frame: Frame
) -> PeerRefused | None:
    """What a Reject says; None when it is none of ours.

    Args:
        identity: ours.
        token: that we said Hello with; None when the peer did.
        frame: of kind REJECT.
    """
    try:
        refusal, reason = explain_reject(identity, token, frame)
    except DecodeError:
        return None
    return PeerRefused(refusal.text, reason, by_peer=True)


def _refuse(identity: LinkIdentity, frame: Frame, refusal: Refusal, reason: str) -> HandshakeStep:
    reject = pack_reject(identity, frame.link_id, refusal)
    return HandshakeStep(reply=reject, refused=PeerRefused(refusal.text, reason))
