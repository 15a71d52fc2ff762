"""Token events that a node keeps until the head has them durably.

`event_seq` counts tokens from 0 within a generation; the finish takes the number after the last
token. Everything at or above the watermark is kept and can be sent again; nothing is ever dropped.
A window that fills asks for a pause instead, well before the limit, since the worker goes on until
the pause reaches it.
"""

from __future__ import annotations

from bus.ids import PackedIds, count_ids
from bus.messages.parts import Finish

#: What one generation may have unacknowledged.
WINDOW_EVENTS = 1024
WINDOW_BYTES = 256 * 1024
#: Pause at three quarters of a limit, resume below half of it.
PAUSE_AT = 0.75
RESUME_BELOW = 0.5
#: What a finish counts for beside its message: numbers and names of bounded length.
FINISH_BYTES = 128


class EventWindow:
    """The unacknowledged events of one generation.

    Invariant: `committed <= next_seq`, and the kept ids are exactly those of event numbers
    `committed` to the number of tokens so far.
    """

    __slots__ = ("_ids", "committed", "finish", "paused", "tokens")

    def __init__(self) -> None:
        self._ids = bytearray()
        #: Events below this number are durable on the head.
        self.committed = 0
        #: Tokens of the generation so far; the number of the next token event.
        self.tokens = 0
        self.finish: Finish | None = None
        #: Whether the worker was asked to make no more tokens.
        self.paused = False

    @property
    def next_seq(self) -> int:
        """The number after the last event, a finish counted."""
        return self.tokens + (self.finish is not None)

    @property
    def is_acknowledged(self) -> bool:
        """Whether the finish, and with it everything, is durable on the head."""
        return self.finish is not None and self.committed >= self.next_seq

    def add(self, ids: bytes, finish: Finish | None) -> None:
        """Keep what the worker made next.

        Raises:
            ValueError: the generation had its finish already.
        """
        if self.finish is not None:
            raise ValueError("a generation has nothing after its finish")
        self._ids += ids
        self.tokens += count_ids(ids)
        self.finish = finish

    def acknowledge(self, committed: int) -> None:
        """Let go of events below `committed`; an older or impossible number changes nothing."""
        if not self.committed < committed <= self.next_seq:
            return
        kept_from = min(committed, self.tokens) - min(self.committed, self.tokens)
        del self._ids[: 4 * kept_from]
        self.committed = committed

    def retained(self) -> tuple[int, PackedIds, Finish | None]:
        """What is not acknowledged: the first event's number, ids, finish."""
        finish = None if self.is_acknowledged else self.finish
        return self.committed, PackedIds(bytes(self._ids)), finish

    @property
    def retained_bytes(self) -> int:
        """What it keeps, in memory; 0 once everything is acknowledged."""
        if self.finish is None or self.is_acknowledged:
            return len(self._ids)
        return len(self._ids) + FINISH_BYTES + len(self.finish.message.encode())

    def _fill(self) -> float:
        events = self.next_seq - self.committed
        return max(events / WINDOW_EVENTS, self.retained_bytes / WINDOW_BYTES)

    def wants_pause(self) -> bool:
        """Whether the worker should be paused now; true once per filling."""
        return not self.paused and self.finish is None and self._fill() >= PAUSE_AT

    def wants_resume(self) -> bool:
        """Whether a paused worker should go on now."""
        return self.paused and self.finish is None and self._fill() < RESUME_BELOW

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        if not 0 <= self.committed <= self.next_seq:
            raise ValueError(f"watermark {self.committed} is above the next event {self.next_seq}")
        if len(self._ids) != 4 * (self.tokens - min(self.committed, self.tokens)):
            raise ValueError("the kept ids are not those above the watermark")
