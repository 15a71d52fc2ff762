"""The numbers of one start of the head: none of them is ever given out twice, also by later starts.

All carry the boot number, which the store raises at each start. A node that has seen higher epochs
than this head ever gave (its store was put back from a copy) makes the head go on above them.
"""

from __future__ import annotations

from bus.errors import Invalid
from bus.ids import BootCounter, Epoch, boot_of
from head.rows import RaiseBoot

#: Numbers are stored as signed 64-bit integers; the boot number is their high half.
MAX_BOOT = 2**31 - 1


class Numbers:
    """Owned by the core. Invariant: all counters have the same boot number."""

    def __init__(self, boot: int) -> None:
        self.answers = BootCounter(boot)
        self.epochs = BootCounter(boot)
        self.generations = BootCounter(boot)
        self.commands = BootCounter(boot)

    @property
    def boot(self) -> int:
        return self.epochs.boot

    def above(self, seen: Epoch) -> RaiseBoot | None:
        """Go on above an epoch that a node has seen; the row to keep when that takes a new boot.

        Raises:
            Invalid: no boot number is above it.
        """
        if seen <= self.epochs.last:
            return None
        boot = boot_of(seen) + 1
        if boot > MAX_BOOT:
            raise Invalid(
                f"it has seen epoch {seen}, and no higher one can be stored; start the node anew "
                "so that it forgets it"
            )
        for counter in (self.answers, self.epochs, self.generations, self.commands):
            counter.raise_to(boot)
        return RaiseBoot(boot=boot)
