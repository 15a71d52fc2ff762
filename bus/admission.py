"""Who may link at one listening socket: limits before authentication, and conflicts of identity.

The checks run in the order of their cost; none of them computes a Diffie-Hellman.
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Hashable, Iterable

from bus.handshake import Admission
from bus.hello_guard import HelloGuard, Mark
from bus.link import HandshakeRefused, LinkIdentity, PeerInfo, Refusal
from bus.messages.parts import ProcessInfo
from bus.rate_limit import KeyedBuckets, TokenBucket

#: Hellos that failed, for one address; good ones cost nothing.
FAILED_HELLOS_PER_S = 20.0
FAILED_HELLOS_BURST = 5.0
#: The same for all addresses together that failed lately: 50 offenders at 20/s each took 9% of a
#: core more than this. Who did not fail for 2 s is always looked at.
ALL_FAILED_HELLOS_PER_S = 100.0
FAILED_LATELY_PER_S = 0.5
#: Handshakes that are answered, for one address, and as many as a fleet behind it at once; 50
#: cost some 1% of a core. Who claims a key proves it only with the Confirm, so it is the address
#: that is counted: a forger uses up its own.
HANDSHAKES_PER_S = 50.0
HANDSHAKES_BURST = 256.0
#: The same for keys that never linked, from all addresses together; and so many more for addresses
#: that asked for no other in the last second, so that one of them does not shut out the rest.
UNKNOWN_KEYS_PER_S = 50.0
UNKNOWN_KEYS_ALONE_PER_S = 200.0
#: So often may one key's link be replaced; two processes that share it would never stop.
MAX_REPLACEMENTS = 3
REPLACEMENT_WINDOW_S = 60.0


class AdmissionControl:
    """Owned by an `Acceptor`.

    Args:
        identity: ours.
        last_seen: mark of a key's last link, as stored; None for an unknown key.
        admit: the owner's checks (enrolment, pins) of who a peer claims to be.
        admit_proven: the owner's checks of a peer that has proved its key.
        linked: the peers of all links that are up.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        *,
        last_seen: Callable[[bytes], Mark | None],
        admit: Admission,
        admit_proven: Admission,
        linked: Callable[[], Iterable[PeerInfo]],
    ) -> None:
        self._identity = identity
        self._guard = HelloGuard(last_seen)
        self._admit = admit
        self._admit_proven = admit_proven
        self._linked = linked
        self._failures = KeyedBuckets(FAILED_HELLOS_PER_S, FAILED_HELLOS_BURST)
        self._lately = KeyedBuckets(FAILED_LATELY_PER_S, 1.0)
        self._all_failures = TokenBucket(ALL_FAILED_HELLOS_PER_S, ALL_FAILED_HELLOS_PER_S)
        self._handshakes = KeyedBuckets(HANDSHAKES_PER_S, HANDSHAKES_BURST)
        self._unknown_keys = TokenBucket(UNKNOWN_KEYS_PER_S, UNKNOWN_KEYS_PER_S)
        self._unknown_lately = KeyedBuckets(1.0, 1.0)
        self._unknown_alone = TokenBucket(UNKNOWN_KEYS_ALONE_PER_S, UNKNOWN_KEYS_ALONE_PER_S)
        self._replaced_at: dict[bytes, deque[float]] = {}

    def may_try(self, source: Hashable, now: float) -> bool:
        """Whether a Hello from a source is looked at; before anything is computed."""
        if not self._failures.bucket(source).available(now):
            return False
        return self._all_failures.available(now) or self._lately.bucket(source).available(now)

    def failed(self, source: Hashable, now: float) -> None:
        """A Hello from a source was refused."""
        self._failures.bucket(source).take(now)
        self._lately.bucket(source).take(now)
        self._all_failures.take(now)

    def check(self, peer: PeerInfo, source: Hashable, now: float) -> None:
        """Every check of a Hello that verified under its token, cheapest first.

        Args:
            peer: who it claims to be; nothing of that is proved yet.
            source: what Hellos are counted by, such as the network that it came from.
            now: seconds.

        Raises:
            HandshakeRefused: the peer may not link now.
        """
        known = self._guard.knows(peer.public)
        self._check_newer(peer)
        self.check_conflicts(peer)
        if self._replacements(peer.public, now) >= MAX_REPLACEMENTS:
            raise HandshakeRefused(
                Refusal.IDENTITY_IN_USE,
                f"the link of {peer.role} {peer.name} was replaced {MAX_REPLACEMENTS} times in a "
                "minute: two processes share its state folder, stop one of them; or its network "
                "drops connections, and it is let in again after a minute",
            )
        self._admit(peer)
        self._check_budget(source, now, known=known)

    def _check_budget(self, source: Hashable, now: float, *, known: bool) -> None:
        if not self._handshakes.bucket(source).take(now):
            raise HandshakeRefused(
                Refusal.TOO_MANY_HANDSHAKES,
                f"more than {HANDSHAKES_PER_S:g} handshakes a second from one address; it is tried "
                "again",
            )
        if known:
            return
        alone = self._unknown_lately.bucket(source).take(now)
        if not (self._unknown_keys.take(now) or (alone and self._unknown_alone.take(now))):
            raise HandshakeRefused(
                Refusal.TOO_MANY_HANDSHAKES,
                f"more than {UNKNOWN_KEYS_PER_S:g} unknown keys a second; it is tried again",
            )

    def check_conflicts(self, peer: PeerInfo) -> None:
        """Refuse a peer that can not be there beside those that are linked.

        Raises:
            HandshakeRefused: another key has its identity, or this node serves another head.
        """
        for other in self._linked():
            if other.public == peer.public:
                continue
            if other.name == peer.name:
                raise HandshakeRefused(
                    Refusal.IDENTITY_IN_USE,
                    f"identity in use: {peer.role} {peer.name} is linked with the key "
                    f"{other.fingerprint}{describe(other.process)}, and another one came with "
                    f"{peer.fingerprint}; stop one of them, or give it another identity",
                )
            if self._identity.role == "node":
                raise HandshakeRefused(
                    Refusal.NODE_TAKEN,
                    f"head {peer.name} wants this node, which serves head {other.name}; "
                    "take it from that head first",
                )

    def check_confirmed(self, peer: PeerInfo) -> None:
        """The last checks of a peer that confirmed.

        Raises:
            HandshakeRefused: it may not link.
        """
        self.check_conflicts(peer)
        self._admit_proven(peer)

    def linked(self, peer: PeerInfo) -> None:
        """A peer's link is up."""
        self._guard.linked(peer)

    def replaced(self, peer: PeerInfo, now: float) -> None:
        """A peer's link took the place of an older one on another connection."""
        self._replaced_at.setdefault(peer.public, deque()).append(now)

    def _check_newer(self, peer: PeerInfo) -> None:
        try:
            self._guard.check(peer)
        except HandshakeRefused:
            for holder in self._linked():
                if holder.public == peer.public and holder.incarnation > peer.incarnation:
                    raise HandshakeRefused(
                        Refusal.IDENTITY_IN_USE, shared_folder_text(peer, holder)
                    ) from None
            raise

    def _replacements(self, public: bytes, now: float) -> int:
        """How often this key's link was replaced in the last minute."""
        times = self._replaced_at.get(public)
        while times and times[0] <= now - REPLACEMENT_WINDOW_S:
            times.popleft()
        if not times:
            self._replaced_at.pop(public, None)
        return len(times or ())


def same_process(one: PeerInfo, other: PeerInfo) -> bool:
    """Whether two links of one key lead to one run of the program."""
    if one.process.nonce and other.process.nonce:
        return one.process.nonce == other.process.nonce
    return one.incarnation == other.incarnation


def shared_folder_text(newcomer: PeerInfo, holder: PeerInfo) -> str:
    """Why a process is refused whose key is linked by another one that lives."""
    return (
        f"identity in use: {holder.role} {holder.name} is linked{describe(holder.process)} and "
        f"lives, and another process came with its key{describe(newcomer.process)}: was its state "
        "folder copied? Stop one of them; to run both, remove node.key and the boot counter from "
        "the copy's node folder, and give it another identity"
    )


def describe(process: ProcessInfo) -> str:
    """Which process it is, as far as is known; begins with a space unless empty."""
    if not process.pid:
        return ""
    at = datetime.datetime.fromtimestamp(process.started_at_s, datetime.UTC)
    return f" (process {process.pid} on {process.host}, running since {at:%Y-%m-%d %H:%M:%S} UTC)"
