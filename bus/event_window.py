"""Token events that a node keeps until the head has them durably.

`event_seq` counts tokens from 0 within a generation; the finish takes the number after the last
token. Everything at or above the watermark is kept and can be sent again; nothing is ever dropped.
A window that fills asks for a pause instead, well before the limit, since the worker goes on until
the pause reaches it.
"""

from __future__ import annotations

from typing import NamedTuple

from bus.ids import PackedIds, count_ids
from bus.messages.parts import Finish

#: What one generation may have unacknowledged.
WINDOW_EVENTS = 1024
WINDOW_BYTES = 256 * 1024
#: Pause at three quarters of a limit, resume below half of it.
PAUSE_AT = 0.75
RESUME_BELOW = 0.5
#: Tokens that a generation may make however far its readers are behind: more than what shows that
#: it is past the place at which a worker died (head/suspects.py).
LEAST_ROOM = 32
#: What a finish counts for beside its message: numbers and names of bounded length.
FINISH_BYTES = 128


class Retained(NamedTuple):
    """What is not acknowledged: the first event's number, ids, finish, log-probabilities."""

    first_seq: int
    ids: PackedIds
    finish: Finish | None
    logprobs: bytes


class EventWindow:
    """The unacknowledged events of one generation.

    Invariant: `committed <= next_seq`, and the kept ids and records of log-probabilities are
    exactly those of event numbers `committed` to the number of tokens so far.

    Args:
        record_bytes: of each token's log-probabilities; 0 for none.
        unread: tokens before its first one that readers are yet to take. They fill the window, but
            for its least room, until something of the generation is acknowledged.
    """

    __slots__ = (
        "_ids",
        "_logprobs",
        "_record_bytes",
        "_unread",
        "committed",
        "finish",
        "paused",
        "tokens",
    )

    def __init__(self, record_bytes: int = 0, unread: int = 0) -> None:
        self._record_bytes = record_bytes
        self._unread = min(unread, round(WINDOW_EVENTS * PAUSE_AT) - LEAST_ROOM)
        self._ids = bytearray()
        self._logprobs = bytearray()
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

    def fits(self, ids: bytes | bytearray, logprobs: bytes | bytearray) -> bool:
        """Whether each token has its log-probabilities, as asked for."""
        return len(logprobs) == self._record_bytes * (len(ids) // 4)

    def add(self, ids: bytes, finish: Finish | None, logprobs: bytes = b"") -> None:
        """Keep what the worker made next.

        Raises:
            ValueError: the generation had its finish already, or the log-probabilities do not fit.
        """
        if self.finish is not None:
            raise ValueError("a generation has nothing after its finish")
        if not self.fits(ids, logprobs):
            raise ValueError("as many log-probabilities as tokens are kept")
        self._ids += ids
        self._logprobs += logprobs
        self.tokens += count_ids(ids)
        self.finish = finish

    def acknowledge(self, committed: int) -> None:
        """Let go of events below `committed`; an older or impossible number changes nothing."""
        if not self.committed < committed <= self.next_seq:
            return
        kept_from = min(committed, self.tokens) - min(self.committed, self.tokens)
        del self._ids[: 4 * kept_from]
        del self._logprobs[: self._record_bytes * kept_from]
        self.committed = committed
        self._unread = 0

    def retained(self) -> Retained:
        """What is not acknowledged."""
        finish = None if self.is_acknowledged else self.finish
        ids = PackedIds(bytes(self._ids))
        return Retained(self.committed, ids, finish, bytes(self._logprobs))

    @property
    def retained_bytes(self) -> int:
        """What it keeps, in memory; 0 once everything is acknowledged."""
        kept = len(self._ids) + len(self._logprobs)
        if self.finish is None or self.is_acknowledged:
            return kept
        return kept + FINISH_BYTES + len(self.finish.message.encode()) + len(self.finish.stop)

    def _fill(self) -> float:
        events = self._unread + self.next_seq - self.committed
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
        if not self.fits(self._ids, self._logprobs):
            raise ValueError("the kept log-probabilities are not those of the kept ids")
