"""Refuses Hellos that were seen before.

A Hello verifies under the fleet token, but it could be a recording, or be made by another member
who names a key that is not its own. So only what a link has proved raises a mark: the pair
(incarnation, counter) of a key's last link, at and below which every Hello of that key is refused.
Of Hellos that made no link yet the exact bytes are remembered, as digests: one that comes again is
refused, while a forged one, whatever numbers it claims, stands in nobody's way.

A newer incarnation that only said Hello does not shut out an older one, either: of two copies of
one state folder the one that is linked stays able to link again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from bus.link import HandshakeRefused, PeerInfo, Refusal

#: Keys whose last link is remembered, the least recently linked forgotten above it.
MAX_KEYS = 16_384
#: Digests of Hellos without a link that are remembered, the oldest forgotten above it (some 3 MB).
#: Whoever can make more of them could as well make new ones.
MAX_HELLOS = 16_384

Mark = tuple[int, int]
_NONE: Mark = (-1, -1)


class HelloGuard:
    """Owned by who answers Hellos.

    Args:
        last_seen: the mark of a key's last link, as stored by an earlier run; None: never linked.
    """

    def __init__(self, last_seen: Callable[[bytes], Mark | None]) -> None:
        self._last_seen = last_seen
        self._linked: OrderedDict[bytes, Mark] = OrderedDict()
        self._hellos: OrderedDict[bytes, None] = OrderedDict()

    def knows(self, public: bytes) -> bool:
        """Whether a key has been linked before."""
        return public in self._linked or self._last_seen(public) is not None

    def check(self, peer: PeerInfo) -> None:
        """Note a newer Hello.

        Raises:
            HandshakeRefused: it is not newer than the last link of its key, or came before.
        """
        mark = (peer.incarnation, peer.hello_counter)
        linked = max(self._linked.get(peer.public, _NONE), self._last_seen(peer.public) or _NONE)
        if mark <= linked:
            raise HandshakeRefused(
                Refusal.HELLO_NOT_NEWER,
                f"{peer.role} {peer.name} came with start {mark[0]}, hello {mark[1]}, but "
                f"{linked[0]}, {linked[1]} was linked: an old frame was sent again, or its boot "
                "counter file was set back; write a higher number into that file",
            )
        if peer.hello in self._hellos:
            raise HandshakeRefused(
                Refusal.HELLO_NOT_NEWER,
                f"the Hello of {peer.role} {peer.name} with start {mark[0]}, hello {mark[1]} came "
                "a second time: an old frame was sent again",
            )
        self._hellos[peer.hello] = None
        while len(self._hellos) > MAX_HELLOS:
            self._hellos.popitem(last=False)

    def linked(self, peer: PeerInfo) -> None:
        """A peer's link is up, which proves its key: what is older is refused from now on."""
        mark = (peer.incarnation, peer.hello_counter)
        self._linked[peer.public] = max(self._linked.pop(peer.public, _NONE), mark)
        # The mark refuses it from now on.
        self._hellos.pop(peer.hello, None)
        while len(self._linked) > MAX_KEYS:
            self._linked.popitem(last=False)
