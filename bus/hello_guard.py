"""Refuses Hellos that were seen before: each run of a peer counts its own, and runs are numbered.

A Hello verifies under the fleet token, but it could be a recording. The mark (incarnation,
counter) must rise: above the mark of the peer's last link, and above every Hello seen of that
incarnation. A newer incarnation that only said Hello does not shut out an older one: of two copies
of one state folder the one that is linked stays able to link again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from bus.link import HandshakeRefused, PeerInfo, Refusal

#: Keys whose Hellos are remembered, the least recently used forgotten above it.
MAX_KEYS = 16_384
#: Incarnations of one key whose Hellos are remembered beside the linked one.
MAX_INCARNATIONS = 8

Mark = tuple[int, int]
_NONE: Mark = (-1, -1)


@dataclass(slots=True)
class _Seen:
    linked: Mark = _NONE
    #: Highest counter by incarnation.
    counters: dict[int, int] = field(default_factory=dict)


class HelloGuard:
    """Owned by who answers Hellos.

    Args:
        last_seen: the mark of a key's last link, as stored by an earlier run; None: never linked.
    """

    def __init__(self, last_seen: Callable[[bytes], Mark | None]) -> None:
        self._last_seen = last_seen
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()

    def knows(self, public: bytes) -> bool:
        """Whether a key has been seen before."""
        return public in self._seen or self._last_seen(public) is not None

    def check(self, peer: PeerInfo) -> None:
        """Note a newer Hello.

        Raises:
            HandshakeRefused: it is not newer.
        """
        mark = (peer.incarnation, peer.hello_counter)
        seen = self._of(peer.public)
        linked = max(seen.linked, self._last_seen(peer.public) or _NONE)
        if mark <= linked or peer.hello_counter <= seen.counters.get(peer.incarnation, -1):
            newest = max(linked, (peer.incarnation, seen.counters.get(peer.incarnation, -1)))
            raise HandshakeRefused(
                Refusal.HELLO_NOT_NEWER,
                f"{peer.role} {peer.name} came with start {mark[0]}, hello {mark[1]}, but "
                f"{newest[0]}, {newest[1]} was seen: an old frame was sent again, or its boot "
                "counter file was set back; write a higher number into that file",
            )
        seen.counters[peer.incarnation] = peer.hello_counter
        while len(seen.counters) > MAX_INCARNATIONS:
            del seen.counters[min(seen.counters)]

    def linked(self, peer: PeerInfo) -> None:
        """A peer's link is up: what is older is refused from now on."""
        seen = self._of(peer.public)
        seen.linked = max(seen.linked, (peer.incarnation, peer.hello_counter))
        for incarnation in [found for found in seen.counters if found < peer.incarnation]:
            del seen.counters[incarnation]

    def _of(self, public: bytes) -> _Seen:
        seen = self._seen.pop(public, None) or _Seen()
        self._seen[public] = seen
        while len(self._seen) > MAX_KEYS:
            self._seen.popitem(last=False)
        return seen
