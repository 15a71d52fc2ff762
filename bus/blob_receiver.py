"""The receiving side of blobs, over any number of links one after the other. No I/O of its own.

    Begin ──▶ receiving ──End, hash matches──▶ keeping ──on disk──▶ Done ok
                 │  ▲
       link lost, │  │ Begin of the same hash goes on at the offset
        or Abort  ▼  │
                 resting ──10 minutes, or its room is needed──▶ gone

A transfer that can not go on is answered with `XferDone` error, and its chunks that are still on
their way are passed over. A hash that two transfers bring comes once: the second one waits for the
first and is answered with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from bus.errors import BlobMissing, Invalid, QueueFull, StorageFull, SuperfluidError, TooLarge
from bus.messages.link_transfers import (
    XferAbort,
    XferBegin,
    XferChunk,
    XferCredit,
    XferDone,
    XferEnd,
)
from bus.messages.parts import BlobRef
from bus.transfer import (
    HASH_MISMATCH,
    MAX_IN_FLIGHT_BYTES,
    MAX_REQUEST_BYTES,
    MAX_TRANSFERS,
    SHA256_BYTES,
    BlobStore,
    Partial,
    name_of,
)

#: What a lost link left is kept so long for the next one.
REST_S = 600.0
#: Each is an open file.
MAX_RESTING = 16
#: Longest blob of each kind that is taken.
KIND_LIMITS: Mapping[str, int] = {"request": MAX_REQUEST_BYTES}
_MESSAGE_BYTES = 1024


@dataclass(slots=True)
class _Incoming:
    """A blob that is not here yet. `transfers` want it, and the first of them sends it."""

    partial: Partial
    transfers: list[int] = field(default_factory=list)
    limit: int = 0
    keeping: bool = False
    resting_since: float = 0.0


class BlobReceiver:
    """One per process that takes blobs. Owned by its core, which hands in messages and time.

    Args:
        store: where blobs go.
        in_use: gives the hashes that must not make room.
    """

    def __init__(self, store: BlobStore, in_use: Callable[[], Collection[bytes]]) -> None:
        self._store = store
        self._in_use = in_use
        self._incoming: dict[bytes, _Incoming] = {}
        self._by_transfer: dict[int, bytes] = {}
        self._messages: list[object] = []
        #: Messages about transfers that ended here already, or never began.
        self.passed_over = 0

    def messages(self) -> list[object]:
        """What to send since the last call, in order."""
        taken, self._messages = self._messages, []
        return taken

    def receive(self, message: object, now: float) -> bool:
        """Take a message; False when it is none for a receiver of blobs."""
        match message:
            case XferBegin():
                self._begin(message, now)
            case XferChunk():
                self._on_transfer(message.transfer, lambda found: self._chunk(found, message, now))
            case XferEnd():
                self._on_transfer(message.transfer, lambda found: self._end(found, message, now))
            case XferAbort():
                self._on_transfer(
                    message.transfer, lambda found: self._leave(found, message.transfer, now)
                )
            case _:
                return False
        return True

    def link_down(self, now: float) -> None:
        """The link is gone and its transfers with it; what came of them rests."""
        self._by_transfer.clear()
        self._messages.clear()
        for found in self._incoming.values():
            if found.transfers:
                found.transfers.clear()
                found.resting_since = now
        self._limit_resting()

    def settle(self) -> None:
        """The store may have put blobs on disk."""
        for settled in self._store.settled():
            found = self._incoming.get(settled.partial.blob.sha256)
            if found is None or found.partial is not settled.partial:
                continue
            if settled.error is None:
                self._close(found, "ok")
            else:
                self._close(found, "error", settled.error)

    def next_timeout(self) -> float | None:
        """When the oldest resting blob goes."""
        return min(
            (found.resting_since + REST_S for found in self._resting()),
            default=None,
        )

    def handle_timeout(self, now: float) -> None:
        for found in list(self._resting()):
            if found.resting_since + REST_S <= now:
                self._forget(found)

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        listed = {t: sha for sha, found in self._incoming.items() for t in found.transfers}
        if listed != self._by_transfer:
            raise ValueError("transfers and blobs do not name each other")
        if len(listed) > MAX_TRANSFERS:
            raise ValueError(f"{len(listed)} transfers at once")
        for found in self._incoming.values():
            if not found.partial.received <= found.partial.blob.length:
                raise ValueError("more came than the blob has")

    # --- messages -----------------------------------------------------------------------------

    def _begin(self, message: XferBegin, now: float) -> None:
        blob = message.blob
        if message.transfer in self._by_transfer:
            found = self._incoming[self._by_transfer[message.transfer]]
            why = Invalid(f"transfer {message.transfer} was begun twice")
            self._fail_one(found, message.transfer, why, now)
            return
        try:
            self._check(message)
            known = self._store.length(blob.sha256)
            if known is not None:
                self._check_length(blob, known)
                self._done(message.transfer, blob.sha256, "have")
                return
            found = self._take_up(blob)
        except SuperfluidError as error:
            self._done(message.transfer, blob.sha256, "error", error)
            return
        found.transfers.append(message.transfer)
        self._by_transfer[message.transfer] = blob.sha256
        if len(found.transfers) == 1 and not found.keeping:
            self._grant(found)

    def _check(self, message: XferBegin) -> None:
        blob, limit = message.blob, KIND_LIMITS.get(message.kind)
        if len(blob.sha256) != SHA256_BYTES:
            raise Invalid(f"a hash of {len(blob.sha256)} bytes; SHA-256 has {SHA256_BYTES}")
        if limit is None:
            raise Invalid(f"blobs of kind {message.kind} are not taken by this version")
        if blob.length > limit:
            raise TooLarge(f"{name_of(blob.sha256)} has {blob.length} bytes; {limit} is the most")
        if len(self._by_transfer) >= MAX_TRANSFERS:
            raise QueueFull(f"{MAX_TRANSFERS} transfers run on this link; wait for one to end")

    def _check_length(self, blob: BlobRef, known: int) -> None:
        if known != blob.length:
            raise Invalid(
                f"{name_of(blob.sha256)} has {known} bytes, not {blob.length} as was said"
            )

    def _take_up(self, blob: BlobRef) -> _Incoming:
        found = self._incoming.get(blob.sha256)
        if found is not None:
            self._check_length(blob, found.partial.blob.length)
            return found
        while True:
            try:
                partial = self._store.begin(blob, self._in_use())
                break
            except StorageFull:
                oldest = min(self._resting(), key=lambda f: f.resting_since, default=None)
                if oldest is None:
                    raise
                self._forget(oldest)
        made = self._incoming[blob.sha256] = _Incoming(partial)
        return made

    def _on_transfer(self, transfer: int, act: Callable[[_Incoming], None]) -> None:
        sha256 = self._by_transfer.get(transfer)
        if sha256 is None:
            self.passed_over += 1
        else:
            act(self._incoming[sha256])

    def _chunk(self, found: _Incoming, message: XferChunk, now: float) -> None:
        partial, data = found.partial, message.data
        end = message.offset + len(data)
        if found.keeping or message.transfer != found.transfers[0]:
            why = Invalid("a chunk that was not asked for")
            self._fail_one(found, message.transfer, why, now)
        elif message.offset != partial.received:
            why = Invalid(f"a chunk at offset {message.offset}; {partial.received} was next")
            self._fail(found, why)
        elif not data or end > found.limit:
            why = Invalid(f"a chunk up to {end}; bytes up to {found.limit} were asked for")
            self._fail(found, why)
        else:
            try:
                self._store.write(partial, data)
            except SuperfluidError as error:
                self._close(found, "error", error)
            else:
                self._grant(found)

    def _end(self, found: _Incoming, message: XferEnd, now: float) -> None:
        partial = found.partial
        received, length = partial.received, partial.blob.length
        if found.keeping or message.transfer != found.transfers[0]:
            why = Invalid("the end of a transfer that brought nothing")
            self._fail_one(found, message.transfer, why, now)
        elif received != length:
            self._fail(found, Invalid(f"it ended after {received} of {length} bytes"))
        elif not partial.matches:
            name = name_of(partial.blob.sha256)
            self._fail(found, BlobMissing(f"{name} came with another hash"), HASH_MISMATCH)
        else:
            found.keeping = True
            self._store.keep(partial)

    def _leave(self, found: _Incoming, transfer: int, now: float) -> None:
        """A transfer ends; another one that waits for the blob goes on with it."""
        sends = found.transfers[0] == transfer
        found.transfers.remove(transfer)
        del self._by_transfer[transfer]
        if not found.transfers:
            found.resting_since = now
            self._limit_resting()
        elif sends and not found.keeping:
            self._grant(found)

    # --- ends ---------------------------------------------------------------------------------

    def _grant(self, found: _Incoming) -> None:
        offset = found.partial.received
        found.limit = min(offset + MAX_IN_FLIGHT_BYTES, found.partial.blob.length)
        self._messages.append(
            XferCredit(transfer=found.transfers[0], offset=offset, limit=found.limit)
        )

    def _fail(self, found: _Incoming, error: SuperfluidError, code: str = "") -> None:
        """Give up a blob; all its transfers end with it."""
        self._store.drop(found.partial)
        self._close(found, "error", error, code)

    def _fail_one(
        self, found: _Incoming, transfer: int, error: SuperfluidError, now: float
    ) -> None:
        """End a transfer that broke the rules; the blob may come over another."""
        self._leave(found, transfer, now)
        self._done(transfer, found.partial.blob.sha256, "error", error)

    def _close(
        self, found: _Incoming, result: str, error: SuperfluidError | None = None, code: str = ""
    ) -> None:
        sha256 = found.partial.blob.sha256
        del self._incoming[sha256]
        for transfer in found.transfers:
            del self._by_transfer[transfer]
            self._done(transfer, sha256, result, error, code)

    def _done(
        self,
        transfer: int,
        sha256: bytes,
        result: str,
        error: SuperfluidError | None = None,
        code: str = "",
    ) -> None:
        text = "" if error is None else error.message
        self._messages.append(
            XferDone(
                transfer=transfer,
                sha256=sha256[:SHA256_BYTES],
                result=result,
                code=code or ("" if error is None else error.code),
                message=text.encode()[:_MESSAGE_BYTES].decode(errors="ignore"),
            )
        )

    def _limit_resting(self) -> None:
        resting = sorted(self._resting(), key=lambda found: found.resting_since)
        for found in resting[: max(len(resting) - MAX_RESTING, 0)]:
            self._forget(found)

    def _resting(self) -> Collection[_Incoming]:
        return [f for f in self._incoming.values() if not f.transfers and not f.keeping]

    def _forget(self, found: _Incoming) -> None:
        self._store.drop(found.partial)
        del self._incoming[found.partial.blob.sha256]
