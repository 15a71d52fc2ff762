"""What one return address of a ROUTER holds, and whose handshake gives way to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from bus.endpoint import Endpoint

#: Handshakes that wait for a Confirm, all of peers with the fleet token. A fleet of 200 that comes
#: back in one moment has room.
MAX_HALF_OPEN = 256
#: What all of them together may hold of Confirms that are not whole.
MAX_CONFIRMING_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class AddressSlot:
    """The link of an address that is up, and a newer handshake of the same peer."""

    #: What its handshakes are counted by.
    source: Hashable = b""
    link: Endpoint | None = None
    half_open: Endpoint | None = None
    #: When the socket refused its last frame, until when it is left alone.
    blocked_until: float = 0.0

    def endpoints(self) -> list[Endpoint]:
        """Both, where they are there."""
        return [found for found in (self.link, self.half_open) if found]

    def next_timeout(self) -> float | None:
        """When one of them, or the socket, is to be tried."""
        times = [endpoint.next_timeout() for endpoint in self.endpoints()]
        times.append(self.blocked_until or None)
        return min((time for time in times if time is not None), default=None)


def one_too_many(slots: Mapping[bytes, AddressSlot]) -> tuple[bytes, str] | None:
    """Whose handshake gives way, and why, when there are too many: the oldest of whoever has most.

    So who opens them without end takes the places of nobody else.

    Args:
        slots: by address, the oldest handshake first.
    """
    waiting = [(address, slot.source) for address, slot in slots.items() if slot.half_open]
    if len(waiting) <= MAX_HALF_OPEN:
        return None
    counts = Counter(source for _, source in waiting)
    most = max(counts.values())
    oldest = next(address for address, source in waiting if counts[source] == most)
    return oldest, f"more than {MAX_HALF_OPEN} handshakes at once; the oldest was cut"


def one_too_heavy(slots: Mapping[bytes, AddressSlot]) -> tuple[bytes, str] | None:
    """Whose handshake gives way, and why, when they hold too much together: see `heaviest`.

    Args:
        slots: by address.
    """
    held, address = heaviest(slots)
    if held <= MAX_CONFIRMING_BYTES:
        return None
    limit = MAX_CONFIRMING_BYTES // 1024**2
    return address, f"handshakes under way hold more than {limit} MiB; the largest was cut"


def heaviest(slots: Mapping[bytes, AddressSlot]) -> tuple[int, bytes]:
    """Bytes that handshakes under way hold of Confirms that are not whole, and whose goes first.

    Args:
        slots: by address.

    Returns:
        All bytes, and the address with most of them of the source with most.
    """
    held = {
        address: slot.half_open.link.joined_bytes
        for address, slot in slots.items()
        if slot.half_open and slot.half_open.link
    }
    by_source: Counter[Hashable] = Counter()
    for address, count in held.items():
        by_source[slots[address].source] += count
    last = max(held, key=lambda where: (by_source[slots[where].source], held[where]), default=b"")
    return sum(held.values()), last
