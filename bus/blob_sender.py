"""The sending side of blobs on one link: a queue of offers, and one chunk at a time. No I/O.

    offered ──Begin──▶ begun ──first credit──▶ sending ──all sent: End──▶ ended
                         │                        │                         │
                         └────────── Done ────────┴──────────── Done ───────┴──▶ outcome

Few transfers run at once, their chunks in turn; a hash that is offered twice is sent once. The
link's bulk in flight is bounded by what it carries in 100 ms (bus/bulk_window.py), and each
transfer by its credit.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from bus.bulk_window import BulkWindow
from bus.errors import QueueFull, SuperfluidError, TimedOut, WireError
from bus.messages.link_transfers import (
    XferAbort,
    XferBegin,
    XferChunk,
    XferCredit,
    XferDone,
    XferEnd,
)
from bus.messages.parts import BlobRef
from bus.transfer import CHUNK_BYTES, name_of

#: Transfers at once: a small blob does not wait for a large one, and few are half done.
MAX_BEGUN = 4
MAX_OFFERED = 4096
#: A receiver that says nothing about a transfer for so long does not want it.
STALL_S = 120.0


class BlobSource(Protocol):
    """Where blobs are read."""

    def read(self, sha256: bytes, offset: int, size: int) -> bytes:
        """Bytes of a blob.

        Raises:
            SuperfluidError: they can not be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a transfer. `code` and `message` are empty unless it failed."""

    blob: BlobRef
    code: str = ""
    message: str = ""
    #: The receiver had it already.
    had: bool = False

    @property
    def failed(self) -> bool:
        return bool(self.code)


@dataclass(slots=True)
class _Outgoing:
    number: int
    kind: str
    blob: BlobRef
    begun_at: float
    heard_at: float
    #: What was sent, and up to where the receiver has it and takes it.
    sent: int = 0
    acknowledged: int = 0
    limit: int = 0
    credited: bool = False
    ended: bool = False

    @property
    def next_bytes(self) -> int:
        """The size of the chunk that may go as far as this transfer is concerned."""
        return min(CHUNK_BYTES, self.limit - self.sent)


class BlobSender:
    """One per link; what a lost link leaves, the next one's sender is offered again.

    Args:
        source: of the blobs.
        numbers: give transfer ids that no other transfer of the link has.
    """

    def __init__(self, source: BlobSource, numbers: Iterator[int]) -> None:
        self._source = source
        self._numbers = numbers
        self._offered: OrderedDict[bytes, tuple[str, BlobRef]] = OrderedDict()
        self._begun: dict[bytes, _Outgoing] = {}
        self._by_number: dict[int, _Outgoing] = {}
        #: Whose turn it is.
        self._turns: deque[bytes] = deque()
        self._outcomes: list[Outcome] = []
        self._aborts: list[XferAbort] = []
        self.window = BulkWindow()

    def offer(self, kind: str, blob: BlobRef) -> None:
        """Send a blob, or share the transfer of it that waits or runs.

        Raises:
            QueueFull: as many wait as may.
            WireError: the same hash is being sent with another length.
        """
        known = self._begun.get(blob.sha256)
        if known is not None and known.blob.length != blob.length:
            raise WireError(f"{name_of(blob.sha256)} is being sent with another length")
        if known is not None or blob.sha256 in self._offered:
            return
        if len(self._offered) >= MAX_OFFERED:
            raise QueueFull(f"{MAX_OFFERED} files wait for this link; try again later")
        self._offered[blob.sha256] = (kind, blob)

    def withdraw(self, sha256: bytes, reason: str) -> None:
        """Nobody wants a blob any more; fine when it is not being sent."""
        self._offered.pop(sha256, None)
        found = self._begun.get(sha256)
        if found is not None:
            self._remove(found)
            self._aborts.append(XferAbort(transfer=found.number, reason=reason))

    def receive(self, message: object, now: float) -> bool:
        """Take a message; False when it is none for a sender. Of ended transfers: passed over."""
        if not isinstance(message, XferCredit | XferDone):
            return False
        found = self._by_number.get(message.transfer)
        if found is None:
            return True
        found.heard_at = now
        if isinstance(message, XferCredit):
            self._credit(found, message, now)
        else:
            self._done(found, message)
        return True

    @property
    def ready(self) -> bool:
        """Whether `next_messages` has something."""
        can_begin = bool(self._offered) and len(self._begun) < MAX_BEGUN
        return bool(self._aborts) or can_begin or any(map(self._may_go, self._begun.values()))

    def next_messages(self, now: float) -> list[object]:
        """What goes next: small messages, and at most one chunk."""
        out: list[object] = list(self._aborts)
        self._aborts.clear()
        while self._offered and len(self._begun) < MAX_BEGUN:
            out.append(self._begin(now))
        for sha256 in list(self._turns):
            found = self._begun.get(sha256)
            if found is None or not self._may_go(found):
                continue
            message = self._advance(found, now)
            out.append(message)
            if isinstance(message, XferChunk):
                self._turns.remove(sha256)
                self._turns.append(sha256)
                break
        return out

    def outcomes(self) -> list[Outcome]:
        """Transfers that ended since the last call."""
        taken, self._outcomes = self._outcomes, []
        return taken

    def next_timeout(self) -> float | None:
        """When a receiver has been silent about a transfer for too long."""
        return min((f.heard_at + STALL_S for f in self._begun.values()), default=None)

    def handle_timeout(self, now: float) -> None:
        for found in list(self._begun.values()):
            if found.heard_at + STALL_S <= now:
                why = f"nothing was said of {name_of(found.blob.sha256)} for {STALL_S:g} s"
                self._give_up(found, TimedOut(why))

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        flying = sum(found.sent - found.acknowledged for found in self._begun.values())
        if flying != self.window.in_flight_bytes:
            raise ValueError(f"{flying} bytes on their way, {self.window.in_flight_bytes} counted")
        if set(self._turns) != set(self._begun) or len(self._turns) != len(self._begun):
            raise ValueError("a transfer has no turn, or one that is gone has")

    # --- inside -------------------------------------------------------------------------------

    def _begin(self, now: float) -> XferBegin:
        sha256, (kind, blob) = self._offered.popitem(last=False)
        made = _Outgoing(next(self._numbers), kind, blob, begun_at=now, heard_at=now)
        self._begun[sha256] = self._by_number[made.number] = made
        self._turns.append(sha256)
        return XferBegin(transfer=made.number, kind=kind, blob=blob)

    def _may_go(self, found: _Outgoing) -> bool:
        if not found.credited or found.ended:
            return False
        if found.sent == found.blob.length:
            return True
        return found.next_bytes > 0 and self.window.has_room(found.next_bytes)

    def _advance(self, found: _Outgoing, now: float) -> object:
        if found.sent == found.blob.length:
            found.ended = True
            return XferEnd(transfer=found.number)
        try:
            data = self._source.read(found.blob.sha256, found.sent, found.next_bytes)
            if len(data) != found.next_bytes:
                raise WireError(f"{name_of(found.blob.sha256)} is shorter here than it was")
        except SuperfluidError as error:
            self._give_up(found, error)
            return self._aborts.pop()
        chunk = XferChunk(transfer=found.number, offset=found.sent, data=data)
        found.sent += len(data)
        self.window.sent(found.number, found.sent, len(data), now)
        return chunk

    def _credit(self, found: _Outgoing, message: XferCredit, now: float) -> None:
        first = not found.credited
        start = found.acknowledged if not first else 0
        end = found.blob.length if first else found.sent
        if not start <= message.offset <= end or not message.offset <= message.limit:
            self._give_up(
                found, WireError(f"a credit for bytes {message.offset} that make no sense")
            )
            return
        if first:
            found.credited = True
            found.sent = found.acknowledged = message.offset
            self.window.answered(now - found.begun_at)
        else:
            size = message.offset - found.acknowledged
            found.acknowledged = message.offset
            self.window.acknowledged(found.number, message.offset, size, now)
        found.limit = min(message.limit, found.blob.length)

    def _done(self, found: _Outgoing, message: XferDone) -> None:
        self._remove(found)
        failed = message.result == "error"
        self._outcomes.append(
            Outcome(
                blob=found.blob,
                code=(message.code or "internal") if failed else "",
                message=message.message if failed else "",
                had=message.result == "have",
            )
        )

    def _give_up(self, found: _Outgoing, error: SuperfluidError) -> None:
        self._remove(found)
        self._aborts.append(XferAbort(transfer=found.number, reason=error.message[:256]))
        self._outcomes.append(Outcome(blob=found.blob, code=error.code, message=error.message))

    def _remove(self, found: _Outgoing) -> None:
        del self._begun[found.blob.sha256], self._by_number[found.number]
        self._turns.remove(found.blob.sha256)
        self.window.gone(found.number, found.sent - found.acknowledged)
