"""Which free text process gets a job: the one that worked for the same client last.

What that client asked before is encoded there already (bus/text/encodings.py). Somebody new gets
the process that became free last, which has what the requests just before had in common.
"""

from __future__ import annotations

from collections import OrderedDict

from head.effects import ClientKey

#: Clients whose last process is remembered.
MAX_CLIENTS = 4096


class FreeSlots:
    """Slots that are up and have no job. Not for threads."""

    def __init__(self) -> None:
        #: In the order in which they became free.
        self._free: list[str] = []
        self._last: OrderedDict[ClientKey, str] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._free)

    def add(self, slot: str) -> None:
        """A slot has no job any more."""
        if slot not in self._free:
            self._free.append(slot)

    def remove(self, slot: str) -> None:
        """A slot is gone; fine when it was not free. What it had encoded is gone, too."""
        if slot in self._free:
            self._free.remove(slot)
        for client in [client for client, last in self._last.items() if last == slot]:
            del self._last[client]

    def take(self, client: ClientKey) -> str:
        """The slot for a job of a client, which is free no more.

        Raises:
            IndexError: none is free.
        """
        slot = self._last.get(client, "")
        if slot not in self._free:
            slot = self._free[-1]
        self._free.remove(slot)
        self._last[client] = slot
        self._last.move_to_end(client)
        if len(self._last) > MAX_CLIENTS:
            self._last.popitem(last=False)
        return slot
