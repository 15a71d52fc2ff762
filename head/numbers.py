"""The numbers of one start of the head: none of them is ever given out twice, also by later starts.

All carry the boot number, which the store raises at each start. A node that has seen higher epochs
than this head ever gave (its store was put back from a copy) makes the head go on above them. It
is believed only so far: a node computes, and may not use the numbers up by claiming high ones.
"""

from __future__ import annotations

from bus.errors import Invalid
from bus.ids import BootCounter, Epoch, boot_of
from head.rows import RaiseBoot

#: Numbers are stored as signed 64-bit integers; the boot number is their high half.
MAX_BOOT = 2**31 - 1
#: By so many boots all nodes together may raise one start's: a start a second for twelve days since
#: the copy was made. Who lies needs 2,000 starts to use them up, and is refused in each of them.
MAX_RAISE = 2**20
HALF_USED = 2**31


class Numbers:
    """Owned by the core. Invariant: all counters have the same boot number."""

    def __init__(self, boot: int) -> None:
        self.answers = BootCounter(boot)
        self.epochs = BootCounter(boot)
        self._may_raise_to = min(MAX_BOOT, boot + MAX_RAISE)
        self.generations = BootCounter(boot)
        self.commands = BootCounter(boot)
        self.chains = BootCounter(boot)

    @property
    def boot(self) -> int:
        return self.epochs.boot

    def renew(self) -> RaiseBoot | None:
        """Go on under the next boot number once a counter is half used up; the row to keep then.

        To be called now and then: a counter lasts for 2,000,000,000 more after it.
        """
        if max(counter.given for counter in self._counters) < HALF_USED:
            return None
        return self._raise_to(self.boot + 1)

    def above(self, seen: Epoch) -> RaiseBoot | None:
        """Go on above an epoch that a node has seen; the row to keep when that takes a new boot.

        Raises:
            Invalid: it is too far above ours to be believed, or no boot number is above it.
        """
        if seen <= self.epochs.last:
            return None
        boot = boot_of(seen) + 1
        if boot > self._may_raise_to:
            raise Invalid(
                f"it says that it has seen epoch {seen}, of start {boot - 1} of a head that is at "
                f"start {self.boot}; no copy of its store is that old. Start the node's agent "
                "anew, so that it forgets, or shut the node out: sfctl node revoke"
            )
        return self._raise_to(boot)

    @property
    def _counters(self) -> tuple[BootCounter, ...]:
        return (self.answers, self.epochs, self.generations, self.commands, self.chains)

    def _raise_to(self, boot: int) -> RaiseBoot:
        for counter in self._counters:
            counter.raise_to(boot)
        return RaiseBoot(boot=boot)
