"""The handshake of a link: Hello, HelloAck, and what each side checks.

    initiator                                         responder
      Hello: versions, suites, roles, token id  ---->   clear, and the Noise prologue
             psk, e, s, {identity, boot, counter}       refused here before any Diffie-Hellman
                                              <----   HelloAck: e, ee, se, s, es, {choices}
      Confirm (sealed frame)                    ---->
                                              <----   Confirm (sealed frame)

Whoever connects is the initiator; which of the two is the head does not depend on it. The whole
clear part of Hello with its header is the prologue, so versions, roles, token and link id can not
be changed on the way. Hello's payload has no forward secrecy and could be replayed: boot number
and counter must be above those of the key's last link, and that is checked before anything is
computed for it (bus/hello_guard.py).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from bus.codec import Codec
from bus.crypto import Entropy, SecretKey
from bus.errors import DecodeError
from bus.fields import MaxBytes, MaxItems, Range
from bus.frames import (
    Frame,
    FrameKind,
    FrameOpener,
    FrameSealer,
    derive_frame_keys,
    derive_rekey_psk,
    pack_header,
)
from bus.keys import FleetToken, fingerprint, show_token_id
from bus.link import HandshakeRefused, LinkIdentity, PeerInfo, Refusal, Role
from bus.messages.parts import U8, U63, Name
from bus.noise import NoiseHandshake

#: Nobody has proved anything yet, so a Hello may cost no more than this to look at.
MAX_HELLO_BYTES = 1024
MAX_HELLO_ACK_BYTES = 16 * 1024
HELLO_DIGEST_BYTES = 16
#: min version, max version, initiator's role, responder's role, suites (bits), token id.
_CLEAR = struct.Struct(">BBBBH16s")
_REJECT = struct.Struct(">BBB")
_ROLES: dict[Role, int] = {"head": 1, "node": 2}
#: Noise_IXpsk0_25519_ChaChaPoly_BLAKE2b with crypto_secretbox frames, as a bit of `suites`.
SUITE = 0x0001

#: One that can not be printed is refused rather than escaped: it names a peer from then on.
_Identity = Annotated[str, MaxBytes(128)]

HANDSHAKE = Codec("handshake", max_bytes=MAX_HELLO_ACK_BYTES)


@HANDSHAKE.message(tag=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class HelloPayload:
    identity: _Identity
    incarnation: U63
    counter: U63


@HANDSHAKE.message(tag=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class HelloAckPayload:
    version: U8
    suite: Annotated[int, Range(0, 0xFFFF)]
    identity: _Identity
    incarnation: U63
    capabilities: Annotated[tuple[Name, ...], MaxItems(64)] = ()


@dataclass(frozen=True, slots=True)
class Established:
    """What a finished handshake gives: the peer, and both directions' sealing."""

    link_id: int
    peer: PeerInfo
    sealer: FrameSealer
    opener: FrameOpener
    #: The pre-shared key of the first rekey.
    rekey_psk: SecretKey


#: Raises `HandshakeRefused` when this peer may not link now; called before any Diffie-Hellman.
Admission = Callable[[PeerInfo], None]


class InitiatorHandshake:
    """One Hello that we sent, and the answer to it."""

    def __init__(
        self, identity: LinkIdentity, token: FleetToken, link_id: int, entropy: Entropy
    ) -> None:
        self._identity = identity
        self.token = token
        self.link_id = link_id
        low, high = identity.versions
        clear = _CLEAR.pack(
            low, high, _ROLES[identity.role], _ROLES[identity.peer_role], SUITE, token.token_id
        )
        prologue = pack_header(FrameKind.HELLO, link_id) + bytes([len(clear)]) + clear
        self._noise = NoiseHandshake(
            initiator=True,
            static=identity.static,
            psk=token.psk,
            prologue=prologue,
            entropy=entropy,
        )
        payload = HelloPayload(
            identity=identity.name,
            incarnation=identity.incarnation,
            counter=identity.hello_counter.next(),
        )
        #: The frame to send.
        self.hello = prologue + self._noise.write(HANDSHAKE.encode(payload))

    def read_ack(self, frame: Frame) -> Established:
        """Finish with the responder's HelloAck.

        Raises:
            AuthError: it does not verify.
            DecodeError: it verifies and is no HelloAck of ours.
            HandshakeRefused: the responder is not who it must be.
        """
        if len(frame.payload) > MAX_HELLO_ACK_BYTES:
            raise DecodeError("a HelloAck is too long")
        payload = HANDSHAKE.decode(self._noise.read(frame.payload))
        identity = self._identity
        low, high = identity.versions
        if not isinstance(payload, HelloAckPayload) or payload.suite != SUITE:
            raise DecodeError("a HelloAck chose what Hello did not offer")
        if not low <= payload.version <= high:
            raise DecodeError(f"a HelloAck chose version {payload.version}")
        peer = PeerInfo(
            name=payload.identity,
            role=identity.peer_role,
            public=self._noise.remote_static,
            incarnation=payload.incarnation,
            version=payload.version,
            capabilities=payload.capabilities,
            token_id=self.token.token_id,
        )
        _check_peer(identity, self.token, peer)
        return _establish(self._noise, self.link_id, peer, initiator=True)


def answer_hello(
    identity: LinkIdentity, frame: Frame, entropy: Entropy, admit: Admission
) -> tuple[bytes, Established]:
    """The HelloAck frame for a Hello, and the link that it makes once confirmed.

    Args:
        identity: ours.
        frame: of kind HELLO.
        entropy: gives the ephemeral key.
        admit: may refuse the peer before any Diffie-Hellman.

    Raises:
        HandshakeRefused: the peer is refused.
        AuthError: the Hello does not verify.
        DecodeError: the Hello is malformed.
    """
    if len(frame.header) + len(frame.payload) > MAX_HELLO_BYTES:
        raise DecodeError(f"a Hello of more than {MAX_HELLO_BYTES} bytes")
    length = frame.payload[0] if frame.payload else 0
    clear, message = frame.payload[1 : 1 + length], frame.payload[1 + length :]
    if len(clear) < _CLEAR.size or len(clear) != length:
        raise DecodeError("a Hello without its clear part")
    low, high, initiator, responder, suites, token_id = _CLEAR.unpack_from(clear)
    version = _choose_version(identity, (low, high), suites)
    if responder != _ROLES[identity.role] or initiator != _ROLES[identity.peer_role]:
        raise HandshakeRefused(
            Refusal.WRONG_ROLE,
            f"a peer that is no {identity.peer_role}, or looks for no {identity.role}, "
            f"connected; only a {identity.peer_role} links to a {identity.role}, "
            "check its address",
        )
    token = _find_token(identity, token_id)
    noise = NoiseHandshake(
        initiator=False,
        static=identity.static,
        psk=token.psk,
        prologue=frame.header + frame.payload[: 1 + length],
        entropy=entropy,
    )
    payload = HANDSHAKE.decode(noise.read(message))
    if not isinstance(payload, HelloPayload):
        raise DecodeError("a Hello with another payload")
    peer = PeerInfo(
        name=payload.identity,
        role=identity.peer_role,
        public=noise.remote_static,
        incarnation=payload.incarnation,
        hello_counter=payload.counter,
        version=version,
        token_id=token_id,
        hello=hashlib.blake2b(message, digest_size=HELLO_DIGEST_BYTES).digest(),
    )
    _check_peer(identity, token, peer)
    admit(peer)
    answer = HelloAckPayload(
        version=version,
        suite=SUITE,
        identity=identity.name,
        incarnation=identity.incarnation,
        capabilities=identity.capabilities,
    )
    header = pack_header(FrameKind.HELLO_ACK, frame.link_id)
    ack = header + noise.write(HANDSHAKE.encode(answer))
    return ack, _establish(noise, frame.link_id, peer, initiator=False)


def _choose_version(identity: LinkIdentity, theirs: tuple[int, int], suites: int) -> int:
    low, high = identity.versions
    version = min(high, theirs[1])
    if version < max(low, theirs[0]) or not suites & SUITE:
        raise HandshakeRefused(Refusal.NO_COMMON_VERSION, _version_text(identity, theirs))
    return version


def _version_text(identity: LinkIdentity, theirs: tuple[int, int]) -> str:
    low, high = identity.versions
    return (
        f"no common version with {identity.peer_name}: it speaks {theirs[0]} to {theirs[1]}, "
        f"this {identity.role} {low} to {high}; update the older one"
    )


def _find_token(identity: LinkIdentity, token_id: bytes) -> FleetToken:
    for token in identity.tokens:
        if token.token_id == token_id:
            return token
    ours = " and ".join(f"{token.source} (id {token.shown_id})" for token in identity.tokens)
    raise HandshakeRefused(
        Refusal.TOKEN_REFUSED,
        f"a {identity.peer_role} came with a fleet token of unknown id {show_token_id(token_id)}; "
        f"this {identity.role} has {ours or 'none'}; copy the head's token file to the node",
    )


def _describe_token(identity: LinkIdentity, token: FleetToken) -> str:
    """Which of ours it is, with its file and id."""
    which = ""
    if len(identity.tokens) > 1:
        which = "current " if token.token_id == identity.tokens[0].token_id else "previous "
    return f"the {which}fleet token in {token.source} (id {token.shown_id})"


def _check_peer(identity: LinkIdentity, token: FleetToken, peer: PeerInfo) -> None:
    if not peer.name.isprintable() or not peer.name.strip():
        raise HandshakeRefused(
            Refusal.HANDSHAKE_FAILED,
            f"a {peer.role} came whose name {peer.name!a} can not be printed; give it another "
            "identity",
        )
    if peer.public == identity.static.public:
        raise HandshakeRefused(
            Refusal.OWN_KEY,
            f"{identity.peer_name} has this {identity.role}'s own key; "
            "it linked to itself, or a key file was copied: give each process its own",
        )
    found = fingerprint(peer.public)
    pinned = token.head_fingerprint if identity.role == "node" else ""
    if pinned and found != pinned:
        raise HandshakeRefused(
            Refusal.PEER_KEY_DIFFERS,
            f"the head has the key {found}, the fleet token in {token.source} was made for "
            f"{pinned}; copy the token file of this head, or check that it is the right head",
        )
    if identity.peer_fingerprint and found != identity.peer_fingerprint:
        raise HandshakeRefused(
            Refusal.PEER_KEY_DIFFERS,
            f"{identity.peer_name} has the key {found}, pinned is {identity.peer_fingerprint}; "
            "if its key was made anew on purpose, remove the pin",
        )


def _establish(
    noise: NoiseHandshake, link_id: int, peer: PeerInfo, *, initiator: bool
) -> Established:
    keys = {
        direction: derive_frame_keys(
            noise.chaining_key, noise.handshake_hash, from_initiator=direction
        )
        for direction in (True, False)
    }
    return Established(
        link_id=link_id,
        peer=peer,
        sealer=FrameSealer(keys[initiator], link_id),
        opener=FrameOpener(keys[not initiator]),
        rekey_psk=derive_rekey_psk(noise.chaining_key, noise.handshake_hash),
    )


def pack_reject(identity: LinkIdentity, link_id: int, refusal: Refusal) -> bytes:
    """A Reject: one code and our versions, in the clear, so only a hint."""
    return pack_header(FrameKind.REJECT, link_id) + _REJECT.pack(refusal, *identity.versions)


def explain_reject(
    identity: LinkIdentity, token: FleetToken | None, frame: Frame
) -> tuple[Refusal, str]:
    """What a Reject says, as a code and a sentence.

    Args:
        identity: ours.
        token: that we said Hello with; None when the peer did.
        frame: of kind REJECT.

    Raises:
        DecodeError: it is none of ours.
    """
    if len(frame.payload) < _REJECT.size:
        raise DecodeError("a Reject without a code")
    number, low, high = _REJECT.unpack_from(frame.payload)
    try:
        refusal = Refusal(number)
    except ValueError:
        refusal = Refusal.HANDSHAKE_FAILED
    peer = identity.peer_name
    if refusal is Refusal.NO_COMMON_VERSION:
        return refusal, _version_text(identity, (low, high))
    if refusal is Refusal.TOKEN_REFUSED and token is not None:
        return refusal, (
            f"{peer} refused {_describe_token(identity, token)}: its token file and this one "
            "differ; copy the head's token file to the node"
        )
    hint = _HINTS.get((refusal, identity.role)) or _HINTS.get((refusal, "")) or refusal.text
    return refusal, f"{peer} refused the link: {hint.format(name=identity.name)}"


#: By refusal and our role; an empty role is either. `{name}` is our identity.
_HINTS: dict[tuple[Refusal, Role | Literal[""]], str] = {
    (Refusal.WRONG_ROLE, ""): "it has the same role; check the address",
    (Refusal.OWN_KEY, ""): "it has the same key; give each process its own key file",
    (Refusal.IDENTITY_IN_USE, ""): "another process has this identity; stop that one, or set "
    "another",
    (Refusal.HELLO_NOT_NEWER, ""): "it saw a later start of this process; restore the boot "
    "counter file",
    (Refusal.TOO_MANY_HANDSHAKES, ""): "too many handshakes at once; it is tried again",
    (Refusal.PEER_KEY_DIFFERS, "head"): "it knows its head by another key; copy this head's token "
    "file to it, or, without tokens, remove head.pin from its folder",
    (Refusal.PEER_KEY_DIFFERS, "node"): "it knows {name} by another key; if the key was made anew "
    "on purpose, forget the former on the head with: sfctl node forget {name}",
    (Refusal.NODE_TAKEN, ""): "it serves another head; take it from that one first",
    (Refusal.NOT_ENROLLED, "node"): "{name} is not enrolled; approve it on the head with: "
    "sfctl node approve {name}",
    (Refusal.REVOKED, "node"): "the key of {name} was revoked; to let it come again, forget that "
    "on the head with: sfctl node forget {name}",
    (Refusal.HANDSHAKE_FAILED, ""): "the handshake did not verify; compare the fleet tokens",
}
