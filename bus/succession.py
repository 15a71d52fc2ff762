"""One link a key: whether a peer that confirmed takes the place of an older link of its key.

no older link                        -> it comes up
the same process, new connection     -> it takes the place at once
another process with its key         -> the older link is probed
    answers within `probe_s`         -> the newcomer is refused: its state folder was copied
    does not, or ends                -> the newcomer takes the place
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bus.admission import AdmissionControl, describe, same_process, shared_folder_text
from bus.endpoint import Endpoint
from bus.link import HandshakeRefused, PeerInfo, Refusal


@dataclass(frozen=True, slots=True)
class _Contest:
    newcomer: Endpoint
    holder: Endpoint
    until: float


class Succession:
    """Owned by an `Acceptor`.

    Args:
        control: says who may link, and counts replacements.
        probe_s: how long an older link has to answer.
        links: gives all links that are up, by address.
        replace: ends the link of an address, for a reason.
    """

    def __init__(
        self,
        control: AdmissionControl,
        *,
        probe_s: float,
        links: Callable[[], Iterator[tuple[bytes, Endpoint]]],
        replace: Callable[[bytes, Endpoint, str], None],
    ) -> None:
        self._control = control
        self._probe_s = probe_s
        self._links = links
        self._replace = replace
        #: By the newcomer's address.
        self._contests: dict[bytes, _Contest] = {}

    def __len__(self) -> int:
        """Newcomers that wait."""
        return len(self._contests)

    def waiting(self) -> list[bytes]:
        """Addresses of newcomers that wait."""
        return list(self._contests)

    def until(self, address: bytes) -> float | None:
        """When the newcomer at an address has waited long enough; None when none waits there."""
        contest = self._contests.get(address)
        return contest.until if contest else None

    def confirmed(self, address: bytes, newcomer: Endpoint, peer: PeerInfo, now: float) -> None:
        """A peer confirmed, which proves its key: it is accepted, refused, or waits."""
        try:
            self._control.check_confirmed(peer)
        except HandshakeRefused as error:
            newcomer.refuse(error.refusal, error.message, now)
            return
        others = [(where, link) for where, link in self._links() if where != address]
        for where, holder in others:
            if holder.peer is None or holder.peer.public != peer.public:
                continue
            if same_process(holder.peer, peer):
                self._supersede(where, holder, peer, now)
            elif holder.link:
                holder.link.probe()
                self._contests[address] = _Contest(newcomer, holder, now + self._probe_s)
                return
        newcomer.accept(now)

    def judge(self, address: bytes, half_open: Endpoint | None, now: float) -> bool:
        """Whether the newcomer at an address may be asked for again with `confirmed`.

        Args:
            address: of a newcomer that waits.
            half_open: who shakes hands there now.
            now: seconds.
        """
        contest = self._contests.pop(address)
        newcomer, holder, peer = contest.newcomer, contest.holder, contest.newcomer.peer
        if half_open is not newcomer or newcomer.state != "held" or not peer:
            return False
        if holder.state != "up" or holder.peer is None or holder.link is None:
            return True
        if holder.link.probe_answered:
            text = shared_folder_text(peer, holder.peer)
            newcomer.refuse(Refusal.IDENTITY_IN_USE, text, now)
            return False
        if now < contest.until:
            self._contests[address] = contest
            return False
        where = next(found for found, link in self._links() if link is holder)
        self._supersede(where, holder, peer, now)
        return True

    def _supersede(self, address: bytes, holder: Endpoint, peer: PeerInfo, now: float) -> None:
        text = f"{peer.role} {peer.name} linked again{describe(peer.process)}"
        self._replace(address, holder, text)
        self._control.replaced(peer, now)
