"""The node's side of leases: how long each session may go on without a word from the head.

A lease counts from when the node asked for it, never from when the grant came: a grant that was
long on its way must not stretch it. From half of a lease on the node asks to renew all of them in
one message, again each second until they are granted.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.ids import Epoch, SessionId
from bus.messages.link import LeaseGrant, LeaseRenew
from bus.messages.parts import LeaseRef

#: Ask again after this long without a grant.
RENEW_AGAIN_S = 1.0
#: Leases of one message; what the messages allow.
MAX_LEASES = 65536


@dataclass(slots=True)
class _Lease:
    epoch: Epoch
    length_s: float
    until: float

    @property
    def renew_from(self) -> float:
        return self.until - self.length_s / 2


class NodeLeases:
    """All leases of a node. They run on by the clock while no link is up. Owned by `AgentSession`.

    Invariant: one lease per session at most; a session without one is fenced or gone.
    """

    __slots__ = ("_asked_at", "_due", "_due_known", "_is_heard", "_leases")

    def __init__(self) -> None:
        self._leases: dict[SessionId, _Lease] = {}
        self._asked_at = float("-inf")
        # Whether a head is there that may be asked.
        self._is_heard = False
        # The next time anything is due, kept between changes: the loop asks at every turn.
        self._due: float | None = None
        self._due_known = True

    def __contains__(self, session: SessionId) -> bool:
        return session in self._leases

    def start(self, session: SessionId, epoch: Epoch, *, since: float, length_s: float) -> None:
        """Begin or replace a session's lease, counted from `since` (seconds)."""
        self._leases[session] = _Lease(epoch, length_s, since + length_s)
        self._due_known = False

    def end(self, session: SessionId) -> None:
        """The session has no lease any more; unknown ones are passed over."""
        self._leases.pop(session, None)
        self._due_known = False

    def link_lost(self) -> None:
        """There is no head to ask any more."""
        self._is_heard = False
        self._due_known = False

    def link_found(self, now: float) -> list[LeaseRenew]:
        """A head may be asked again; asks it for every lease at once."""
        self._is_heard = True
        return self._ask(now)

    def grant(self, message: LeaseGrant, now: float) -> None:
        """Stretch the leases that the head renewed; none gets shorter by an old grant.

        A time of asking that lies ahead is not one that this node sent, and counts as `now`.
        """
        since = min(message.sent_at_s, now)
        length_s = message.lease_ms / 1000
        for ref in message.leases:
            lease = self._leases.get(ref.session)
            if lease is not None and lease.epoch == ref.epoch:
                lease.until = max(lease.until, since + length_s)
                lease.length_s = length_s
        self._due_known = False

    def expired(self, now: float) -> list[SessionId]:
        """Sessions whose lease ran out; their leases end here."""
        over = [session for session, lease in self._leases.items() if lease.until <= now]
        for session in over:
            self.end(session)
        return over

    def renew(self, now: float) -> list[LeaseRenew]:
        """What to ask the head for now: nothing, or every lease there is."""
        if not self._is_heard or now < self._asked_at + RENEW_AGAIN_S:
            return []
        if not any(lease.renew_from <= now for lease in self._leases.values()):
            return []
        return self._ask(now)

    def _ask(self, now: float) -> list[LeaseRenew]:
        self._asked_at = now
        self._due_known = False
        refs = tuple(LeaseRef(session=s, epoch=lease.epoch) for s, lease in self._leases.items())
        return [
            LeaseRenew(sent_at_s=now, leases=refs[low : low + MAX_LEASES])
            for low in range(0, len(refs), MAX_LEASES)
        ]

    def next_timeout(self) -> float | None:
        """When to call `expired` and `renew` next."""
        if not self._due_known:
            self._due = self._next_due()
            self._due_known = True
        return self._due

    def _next_due(self) -> float | None:
        if not self._leases:
            return None
        ends_at = min(lease.until for lease in self._leases.values())
        if not self._is_heard:
            return ends_at
        renew_at = min(lease.renew_from for lease in self._leases.values())
        renew_at = max(renew_at, self._asked_at + RENEW_AGAIN_S)
        return min(renew_at, ends_at)
