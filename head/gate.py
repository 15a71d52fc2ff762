"""The output-commit rule, in one place: nothing leaves before what it rests on is durable.

The core hands over `Effects`: at most one `Persist` for the store and outputs tagged with the lsn
they wait for. Outputs leave in the order they came; one that waits holds back all behind it, so
that a peer sees the order in which the core decided.
"""

from __future__ import annotations

from collections import deque

from bus.errors import Internal
from head.effects import Effects, Output, Persist, Tagged


class OutputGate:
    """Holds outputs back until their lsn is durable. Driven by the head's loop.

    An order of lsns that is none is a fault of ours, after which the head ends.

    Invariant: every output that was released has `after` at or below `durable_lsn`, and outputs
    are released in the order admitted.
    """

    def __init__(self) -> None:
        self._durable = 0
        self._submitted = 0
        self._waiting: deque[Tagged] = deque()

    @property
    def durable_lsn(self) -> int:
        """All up to this is on disk."""
        return self._durable

    @property
    def waiting(self) -> int:
        """How many outputs are held back."""
        return len(self._waiting)

    def admit(self, effects: Effects) -> tuple[Persist | None, list[Output]]:
        """Take one round of the core.

        Returns:
            What the store is to commit, and the outputs that may leave at once: those first that
            wait for nothing.

        Raises:
            Internal: an lsn does not follow the last, or an output waits for one that no
                `Persist` has.
        """
        persist = effects.persist
        if persist is not None:
            if persist.lsn != self._submitted + 1:
                raise Internal(f"lsn {persist.lsn} came after {self._submitted}")
            self._submitted = persist.lsn
        for tagged in effects.outputs:
            if not 0 <= tagged.after <= self._submitted:
                raise Internal(
                    f"an output waits for lsn {tagged.after}; the last is {self._submitted}"
                )
            self._waiting.append(tagged)
        released = self._release()
        return persist, [*effects.forwards, *released] if effects.forwards else released

    def durable(self, lsn: int) -> list[Output]:
        """The store has committed all up to `lsn`.

        Returns:
            The outputs that may leave now.

        Raises:
            Internal: `lsn` goes back, or was never submitted.
        """
        if not self._durable <= lsn <= self._submitted:
            raise Internal(
                f"the store reports lsn {lsn}; it had {self._durable}, and {self._submitted} is "
                "the last submitted"
            )
        self._durable = lsn
        return self._release()

    def _release(self) -> list[Output]:
        released = []
        while self._waiting and self._waiting[0].after <= self._durable:
            released.append(self._waiting.popleft().output)
        return released
