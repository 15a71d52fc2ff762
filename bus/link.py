"""What a link is made of, seen from outside: who we are, who the peer is, limits, and events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, Self

from bus.capabilities import CAPABILITIES
from bus.crypto import KeyPair
from bus.errors import WireError
from bus.keys import FleetToken, fingerprint
from bus.messages.link import HeadConfirm, NodeConfirm
from bus.messages.parts import ProcessInfo

Role = Literal["head", "node"]
#: Every version of the messages that this code speaks, lowest and highest.
WIRE_VERSIONS = (1, 1)


class Refusal(IntEnum):
    """Why a handshake was refused; the number travels in a Reject, which proves nothing."""

    TOKEN_REFUSED = 1
    NO_COMMON_VERSION = 2
    WRONG_ROLE = 3
    OWN_KEY = 4
    IDENTITY_IN_USE = 5
    HELLO_NOT_NEWER = 6
    TOO_MANY_HANDSHAKES = 7
    PEER_KEY_DIFFERS = 8
    NODE_TAKEN = 9
    NOT_ENROLLED = 10
    HANDSHAKE_FAILED = 11
    REVOKED = 12

    @property
    def text(self) -> str:
        return self.name.lower()


#: Why a side ended or refused a link; a Goodbye carries it in front of its sentence.
END_CODES = frozenset(refusal.text for refusal in Refusal) | {
    "replaced",
    "silent",
    "gap",
    "auth",
    "decode",
    "protocol",
    "queue_full",
    "rekey",
    "counter",
    "goodbye",
}
#: A Goodbye's text is cut to this; the message takes 512.
GOODBYE_BYTES = 500


def opposite(role: Role) -> Role:
    return "node" if role == "head" else "head"


def goodbye_text(code: str, reason: str) -> str:
    """The reason in a Goodbye: why this side ended the link, as code and sentence."""
    return f"{code}: {reason}".encode()[:GOODBYE_BYTES].decode(errors="ignore")


def read_goodbye(text: str) -> tuple[str, str]:
    """Code and sentence of a Goodbye; one without a code of ours is a plain `goodbye`."""
    code, _, reason = text.partition(": ")
    return (code, reason) if code in END_CODES else ("goodbye", text)


class HelloCounter:
    """Rises with every Hello that one process sends under one key, over all its links."""

    def __init__(self) -> None:
        self._value = 0

    def next(self) -> int:
        self._value += 1
        return self._value


@dataclass(frozen=True, kw_only=True)
class LinkIdentity:
    """One process's side of all its links.

    Attributes:
        role: what this process is; its peer is the other.
        name: identity in the fleet (a node's identity, a head's name).
        static: its X25519 key.
        tokens: the fleet tokens that are valid, the one to connect with first; read at each
            handshake, so they may change meanwhile (bus/token_files.py).
        incarnation: its boot number, which rises at each start.
        confirm: makes the last handshake message of this moment.
        capabilities: names of what it can do beyond the wire version (bus/capabilities.py).
        process: tells this run of the program from others that have its key.
        peer_fingerprint: the only key that the peer may have, beside what the token says.
        peer_label: names the peer in sentences ("node gpu-2").
        versions: lowest and highest wire version.
        hello_counter: shared by all links of the process.
    """

    role: Role
    name: str
    static: KeyPair
    tokens: Sequence[FleetToken]
    incarnation: int
    confirm: Callable[[], NodeConfirm | HeadConfirm]
    capabilities: tuple[str, ...] = CAPABILITIES
    process: ProcessInfo = ProcessInfo()
    peer_fingerprint: str = ""
    peer_label: str = ""
    versions: tuple[int, int] = WIRE_VERSIONS
    hello_counter: HelloCounter = field(default_factory=HelloCounter)

    @property
    def peer_role(self) -> Role:
        return opposite(self.role)

    @property
    def peer_name(self) -> str:
        return self.peer_label or f"the {self.peer_role}"


@dataclass(frozen=True, kw_only=True)
class LinkLimits:
    """Times in seconds, sizes in bytes."""

    #: From HelloAck to the peer's Confirm.
    confirm_s: float = 5.0
    #: From the first Hello to the link; then an operator is told, and Hello goes on.
    handshake_s: float = 10.0
    #: Hello is sent again after a random time that doubles from 0.5 s to this.
    hello_retry_s: float = 5.0
    #: The same after a Reject, from 1 to 2 s on.
    reject_retry_s: float = 60.0
    #: Without another frame for so long, a heartbeat goes out; `busy` while a generation is live.
    heartbeat_s: float = 5.0
    busy_heartbeat_s: float = 1.0
    #: A link silent for so long is lost; 0 keeps it.
    silence_s: float = 30.0
    #: New keys for a link's frames after so long (0: never), or after so many frames of a channel.
    rekey_s: float = 3600.0
    rekey_frames: int = 2**32
    #: A peer that does not finish a rekey in this loses the link.
    rekey_within_s: float = 30.0
    #: After a plaintext Stale: what the peer seals within this proves the Stale wrong.
    stale_s: float = 0.25
    #: A peer that does not answer within this may be replaced by another run of itself.
    probe_s: float = 2.0
    #: Two messages of the greatest length: a peer that takes none of that is no peer.
    max_queued_bytes: int = 128 * 1024 * 1024

    @classmethod
    def with_silence(cls, silence_s: float) -> Self:
        """The limits for a configured silence; no handshake is waited for longer than that."""
        longest_s = silence_s or math.inf
        return cls(
            silence_s=silence_s,
            handshake_s=min(cls.handshake_s, longest_s),
            confirm_s=min(cls.confirm_s, longest_s / 2),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """The peer as the handshake proved it (its name is a claim that its key vouches for).

    Attributes:
        capabilities: what both sides can do beyond the wire version; whole from `LinkUp` on.
        token_id: of the fleet token that the handshake was made with.
        host: where it called from, as far as an acceptor was told; else empty.
        process: which run of the program it is; known from its Confirm on.
        hello: digest of its Hello as it came; empty when it was us who said Hello.
    """

    name: str
    role: Role
    public: bytes
    incarnation: int
    hello_counter: int = 0
    version: int = 1
    capabilities: tuple[str, ...] = ()
    token_id: bytes = b""
    host: str = ""
    process: ProcessInfo = ProcessInfo()
    hello: bytes = b""

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)


class HandshakeRefused(WireError):
    """This side refuses the peer; inside bus only, it becomes a `PeerRefused` event."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class PeerConfirmed:
    """The peer has confirmed, and this side's owner decides with `accept` or `refuse`.

    Only an endpoint that holds for its owner has it; `LinkUp` follows.
    """

    peer: PeerInfo


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Both sides have confirmed; everything sent on this link follows this event."""

    peer: PeerInfo
    confirm: NodeConfirm | HeadConfirm


@dataclass(frozen=True, slots=True)
class MessageReceived:
    message: Any


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The end of a link that was up. What was queued on it is gone; sessions reconcile.

    Attributes:
        code: goodbye, replaced, silent, disconnected, stale, gap, auth, decode, protocol,
            queue_full, counter, rekey, closed (this side's owner).
        reason: a sentence for a person.
        by_peer: the peer said so.
    """

    code: str
    reason: str
    by_peer: bool = False


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Why a link can not go on; inside bus only, it becomes an event."""

    code: str
    reason: str
    #: It ended the link itself, in a Goodbye.
    by_peer: bool = False


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """A handshake that led to no link.

    Attributes:
        code: a `Refusal` in lower case, or handshake_timeout, connection_closed, stale,
            gap, auth, decode, protocol.
        reason: a sentence for a person, with the remedy.
        by_peer: the peer refused us; its Reject is a hint that proves nothing.
        peer: who it claims to be, where that was read.
    """

    code: str
    reason: str
    by_peer: bool = False
    peer: PeerInfo | None = None


LinkEvent = PeerConfirmed | LinkUp | MessageReceived | LinkDown | PeerRefused
