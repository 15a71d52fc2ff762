"""Which nodes may link: the keys that this head knows, and what it does with others.

A fleet token proves membership, not identity. So the head pins each node's static key to its
identity, and what happens to a key that it does not know is the way of enrolment:

    open      it is enrolled when its first link is up
    approve   it waits, `pending`, until an operator approves it; it comes again by itself
    closed    it is refused

A known identity with another key is refused whatever the way, and so is a revoked key, until an
operator forgets them. Both are seen before anything is computed for a peer; but who waits is noted
only once it has proved its key, so that nobody can stand in the list with another's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any, Literal

from bus.address import network_of
from bus.errors import Invalid, NotFound
from bus.ids import NodeIdentity
from bus.keys import fingerprint, is_fingerprint, show_token_id
from bus.link import HandshakeRefused, PeerInfo, Refusal
from head.outbox import Outbox
from head.rows import ForgetNodeKey, PutNodeKey, PutSetting

#: Says whether a public key lies in the head's own state folder.
OwnKey = Callable[[bytes], bool]
Way = Literal["open", "approve", "closed"]
WAYS: frozenset[str] = frozenset({"open", "approve", "closed"})
PENDING, ENROLLED, REVOKED = "pending", "enrolled", "revoked"
#: Keys that wait for approval; above it the oldest of the network with most is forgotten, and noted
#: again when it comes. So a crowd from one machine pushes nobody else out.
MAX_PENDING = 256
#: The stored setting: `approve` when a revocation closed an open fleet, else empty.
SETTING = "enrolment"


@dataclass(frozen=True, slots=True)
class Revocation:
    """What a revocation did.

    Attributes:
        keys: that are refused from now on.
        unpinned: identities that were enrolled until now.
        now_approves: it ended the open way of enrolment.
    """

    keys: tuple[PutNodeKey, ...]
    unpinned: tuple[NodeIdentity, ...]
    now_approves: bool


class Enrolment:
    """All node keys that this head has heard of. Owned by the core; no I/O, no clock.

    An identity has at most one enrolled key; it may have pending and revoked ones beside.

    Args:
        configured: the way that the configuration asks for.
        outbox: takes the rows to keep.
        keys: as stored.
        settings: as stored.
    """

    def __init__(
        self,
        configured: Way,
        outbox: Outbox,
        keys: Iterable[PutNodeKey] = (),
        settings: Iterable[PutSetting] = (),
    ) -> None:
        self._configured = configured
        self._outbox = outbox
        #: By public key; those that wait are in the order they came.
        self._keys = {key.public: key for key in sorted(keys, key=lambda k: k.changed_wall_s)}
        stored = {setting.name: setting.value for setting in settings}
        self._tightened = stored.get(SETTING) == "approve"
        #: Short ids of the tokens that nodes linked with last, since this start.
        self._linked_with: dict[bytes, str] = {}

    @property
    def way(self) -> Way:
        """What happens to unknown keys now."""
        return "approve" if self._tightened and self._configured == "open" else self._configured

    @property
    def keys(self) -> Sequence[PutNodeKey]:
        """All of them, by identity."""
        return sorted(self._keys.values(), key=lambda key: (key.identity, key.public))

    # --- what links ask -----------------------------------------------------------------------

    def check_claim(self, peer: PeerInfo) -> None:
        """See whether a node may link if it is who it claims to be; what a link may not change.

        Args:
            peer: a node whose fleet token verified, and nothing else.

        Raises:
            HandshakeRefused: it may not, with the remedy.
        """
        if is_fingerprint(peer.name):
            raise HandshakeRefused(
                Refusal.IDENTITY_IN_USE,
                f"a node came whose identity {peer.name} could be taken for a key; give it another",
            )
        known = self._keys.get(peer.public)
        if known is not None and known.state == REVOKED:
            raise HandshakeRefused(
                Refusal.REVOKED,
                f"node {peer.name} came with the key {peer.fingerprint}, which was revoked; to let "
                f"it come again: sfctl node forget {quote(known.identity)}",
            )
        pinned = self._pinned(peer.name)
        if pinned is not None and pinned.public != peer.public:
            raise HandshakeRefused(
                Refusal.PEER_KEY_DIFFERS,
                f"node {peer.name} came with the key {peer.fingerprint}, and enrolled is "
                f"{fingerprint(pinned.public)}; if its key was made anew on purpose: sfctl node "
                f"forget {quote(peer.name)}; if not, another machine uses its name: "
                "give that one another identity",
            )
        if self.way == "closed" and not _is_enrolled(known, peer):
            self._refuse_unknown(peer, known)

    def check(self, peer: PeerInfo, wall_s: float, own: OwnKey = lambda _: False) -> None:
        """See whether a node may link, and note one that has to wait.

        Args:
            peer: a node that has proved its key.
            wall_s: seconds since 1970.
            own: whether a key lies in the head's own state folder: who put it there could approve
                it, so it needs no approval.

        Raises:
            HandshakeRefused: it may not, with the remedy.
        """
        self.check_claim(peer)
        known = self._keys.get(peer.public)
        if _is_enrolled(known, peer) or self.way == "open" or own(peer.public):
            return
        if known is None or known.state == PENDING:
            self._note_waiting(peer, known, wall_s)
        self._refuse_unknown(peer, known)

    def _note_waiting(self, peer: PeerInfo, known: PutNodeKey | None, wall_s: float) -> None:
        if known is None or known.identity != peer.name:
            self._put(_key(peer, PENDING, wall_s))
        while len(waiting := self._waiting()) > MAX_PENDING:
            counts = Counter(network_of(key.host) for key in waiting)
            most = max(counts.values())
            self._drop(next(key for key in waiting if counts[network_of(key.host)] == most))

    def _refuse_unknown(self, peer: PeerInfo, known: PutNodeKey | None) -> None:
        if known is not None and known.state == ENROLLED:
            raise HandshakeRefused(
                Refusal.NOT_ENROLLED,
                f"node {peer.name} came with the key {peer.fingerprint}, which is enrolled as "
                f"{known.identity}; give it that identity again, or: sfctl node forget "
                f"{quote(known.identity)}",
            )
        if self.way == "closed":
            raise HandshakeRefused(
                Refusal.NOT_ENROLLED,
                f"node {peer.name} with the key {peer.fingerprint} is not enrolled and this fleet "
                "takes no new nodes; to take it, set enrolment in [fleet] of head.toml to approve",
            )
        raise HandshakeRefused(
            Refusal.NOT_ENROLLED,
            f"node {peer.name} with the key {peer.fingerprint} waits for approval; if it is yours, "
            f"approve it on the head with: sfctl node approve {quote(peer.name)}",
        )

    def linked(self, peer: PeerInfo, wall_s: float) -> None:
        """A node that `check` let pass has proved its key: enrol one that is new."""
        self._linked_with[peer.public] = show_token_id(peer.token_id)
        if not _is_enrolled(self._keys.get(peer.public), peer):
            self._enrol(_key(peer, ENROLLED, wall_s))

    # --- what operators do --------------------------------------------------------------------

    def approve(self, name: str, wall_s: float) -> PutNodeKey:
        """Enrol the pending key of an identity, or with this fingerprint.

        Raises:
            NotFound: none waits; says which do.
            Invalid: several keys wait under this identity.
        """
        found = self.find(name, PENDING)
        if not found:
            if any(key.state == REVOKED for key in self.find(name)):
                raise Invalid(
                    f"the key of {name} was revoked; forget that first: sfctl node forget {name}",
                    param="name",
                )
            if self.find(name, ENROLLED):
                raise Invalid(f"{name} is enrolled already; nothing is left to do", param="name")
            waiting = ", ".join(sorted({key.identity for key in self._waiting()})) or "none"
            raise NotFound(f"no node {name} waits for approval; waiting: {waiting}", param="name")
        if len(found) > 1:
            raise Invalid(
                f"{len(found)} keys wait under the name {name}: "
                + ", ".join(f"{fingerprint(key.public)} from {key.host or '?'}" for key in found)
                + "; compare with the node's log and approve the right one by its key",
                param="name",
            )
        return self._enrol(replace(found[0], state=ENROLLED, changed_wall_s=wall_s))

    def approve_all(self, wall_s: float) -> list[PutNodeKey]:
        """Enrol every pending key whose identity has but one."""
        counts: dict[str, int] = {}
        for key in self._waiting():
            counts[key.identity] = counts.get(key.identity, 0) + 1
        return [
            self._enrol(replace(key, state=ENROLLED, changed_wall_s=wall_s))
            for key in self._waiting()
            if counts[key.identity] == 1
        ]

    def revoke(self, name: str, wall_s: float) -> Revocation:
        """Refuse the keys of an identity, or the one with this fingerprint, from now on.

        An open way of enrolment ends: the machine could come back under a new key.

        Raises:
            NotFound: no such node.
        """
        found = self.find(name)
        if not found:
            raise NotFound(f"no node {name} is known; list them with: sfctl node ls", param="name")
        keys = tuple(
            key
            if key.state == REVOKED
            else self._put(replace(key, state=REVOKED, changed_wall_s=wall_s))
            for key in found
        )
        unpinned = tuple(key.identity for key in found if key.state == ENROLLED)
        was_open = self.way == "open"
        if was_open:
            self._tightened = True
            self._outbox.persist(PutSetting(name=SETTING, value="approve"))
        return Revocation(keys, unpinned, was_open)

    def forget(self, name: str) -> list[PutNodeKey]:
        """Forget all keys of an identity, or the one with this fingerprint; gives what it was."""
        found = self.find(name)
        for key in found:
            self._drop(key)
        return found

    def restore_way(self) -> Way:
        """Go back to the configured way, after a revocation had set `approve`."""
        if self._tightened:
            self._tightened = False
            self._outbox.persist(PutSetting(name=SETTING, value=""))
        return self.way

    def find(self, name: str, state: str | None = None) -> list[PutNodeKey]:
        """The keys of an identity, or the one with this fingerprint; in a state, if it is given."""
        named = [key for key in self._keys.values() if name == fingerprint(key.public)]
        # A fingerprint is never another node's identity: `check_claim` sees to it.
        named = named or [key for key in self._keys.values() if name == key.identity]
        return [key for key in named if state in (None, key.state)]

    def report(self) -> dict[str, Any]:
        """For the API: the way, whether a revocation set it, and all keys."""
        return {
            "way": self.way,
            "configured": self._configured,
            "keys": [
                {**describe(key), "token": self._linked_with.get(key.public, "")}
                for key in self.keys
            ],
        }

    # --- inside -------------------------------------------------------------------------------

    def _pinned(self, identity: str) -> PutNodeKey | None:
        return next(
            (k for k in self._keys.values() if k.identity == identity and k.state == ENROLLED),
            None,
        )

    def _waiting(self) -> list[PutNodeKey]:
        """Those that wait, the oldest first."""
        return [key for key in self._keys.values() if key.state == PENDING]

    def _enrol(self, key: PutNodeKey) -> PutNodeKey:
        """Pin a key; others that wait under its identity would be refused now, so they go."""
        self._put(key)
        for other in self.find(key.identity, PENDING):
            self._drop(other)
        return key

    def _put(self, key: PutNodeKey) -> PutNodeKey:
        self._keys.pop(key.public, None)
        self._keys[key.public] = key
        self._outbox.persist(key)
        return key

    def _drop(self, key: PutNodeKey) -> None:
        del self._keys[key.public]
        self._linked_with.pop(key.public, None)
        self._outbox.persist(ForgetNodeKey(public=key.public))


def _is_enrolled(known: PutNodeKey | None, peer: PeerInfo) -> bool:
    return known is not None and known.state == ENROLLED and known.identity == peer.name


def _key(peer: PeerInfo, state: str, wall_s: float) -> PutNodeKey:
    return PutNodeKey(
        public=peer.public,
        identity=NodeIdentity(peer.name),
        state=state,
        host=peer.host,
        changed_wall_s=wall_s,
    )


def describe(key: PutNodeKey) -> dict[str, Any]:
    """A key for the API."""
    return {
        "identity": key.identity,
        "state": key.state,
        "key": fingerprint(key.public),
        "host": key.host,
        "changed_wall_s": round(key.changed_wall_s, 3),
    }
