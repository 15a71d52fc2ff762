"""A sender and a receiver of blobs joined by a link in memory, which has a rate and can be lost."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Collection
from itertools import count
from pathlib import Path

from bus.blob_index import BlobIndex
from bus.blob_receiver import BlobReceiver
from bus.blob_sender import BlobSender, Outcome
from bus.errors import BlobMissing, StorageFull
from bus.messages.link import LINK
from bus.messages.link_transfers import XferChunk
from bus.messages.parts import BlobRef
from bus.transfer import Partial, Settled

GENEROUS = 1 << 40


def blob_of(data: bytes) -> BlobRef:
    """What names `data`."""
    return BlobRef(sha256=hashlib.sha256(data).digest(), length=len(data))


def some_bytes(length: int, seed: int = 0) -> bytes:
    """Bytes that no two seeds share."""
    return random.Random(seed).randbytes(length)


class BlobsInMemory:
    """A `BlobStore` without files. `disk_bytes` is what its disk takes in all.

    With `slow` a blob is kept only when `sync` is called.
    """

    def __init__(self, budget_bytes: int = GENEROUS, *, slow: bool = False) -> None:
        self.index = BlobIndex(budget_bytes)
        self.data: dict[bytes, bytes] = {}
        self.partials: dict[int, bytearray] = {}
        self.begun: dict[int, Partial] = {}
        self.disk_bytes = GENEROUS
        self.slow = slow
        self._numbers = count(1)
        self._keeping: list[Partial] = []

    def restart(self) -> None:
        """Its process was started again: what is not whole is gone."""
        for partial in self.begun.values():
            self.index.release(partial.blob.length)
        self.begun.clear()
        self.partials.clear()
        self._keeping.clear()

    def file_of(self, sha256: bytes) -> Path:
        """What a worker is told."""
        return Path("/files") / sha256.hex()

    def put(self, data: bytes) -> BlobRef:
        """Have a blob from the start."""
        blob = blob_of(data)
        self.data[blob.sha256] = data
        self.index.add(blob.sha256, blob.length)
        return blob

    @property
    def budget_bytes(self) -> int:
        return self.index.budget_bytes

    def length(self, sha256: bytes) -> int | None:
        return self.index.use(sha256)

    def begin(self, blob: BlobRef, in_use: Collection[bytes]) -> Partial:
        for sha256 in self.index.reserve(blob.length, in_use):
            del self.data[sha256]
        made = Partial(blob, next(self._numbers))
        self.partials[made.number] = bytearray()
        self.begun[made.number] = made
        return made

    def write(self, partial: Partial, data: bytes) -> None:
        if len(data) > self.disk_bytes:
            self.drop(partial)
            raise StorageFull("the disk is full; free some space there")
        self.disk_bytes -= len(data)
        self.partials[partial.number] += data
        partial.add(data)

    def keep(self, partial: Partial) -> None:
        self._keeping.append(partial)

    def drop(self, partial: Partial) -> None:
        self.begun.pop(partial.number, None)
        if self.partials.pop(partial.number, None) is not None:
            self.index.release(partial.blob.length)

    def sync(self) -> None:
        """What was to be kept is on disk."""
        self.slow = False

    def settled(self) -> list[Settled]:
        if self.slow:
            return []
        out = []
        for partial in self._keeping:
            blob = partial.blob
            self.data[blob.sha256] = bytes(self.partials[partial.number])
            self.drop(partial)
            self.index.add(blob.sha256, blob.length)
            out.append(Settled(partial))
        self._keeping.clear()
        return out

    def read(self, sha256: bytes, offset: int, size: int) -> bytes:
        if self.index.use(sha256) is None:
            raise BlobMissing("it is not here any more; send it again")
        return self.data[sha256][offset : offset + size]

    def remove(self, sha256: bytes) -> None:
        self.index.remove(sha256)
        self.data.pop(sha256, None)


class BlobRig:
    """One source, one receiver, and one link after the other between them.

    Bytes take `1 / rate` seconds each, one direction after the other in order; `delay_s` is the
    way's own time. Every message goes through the wire's codec.
    """

    def __init__(self, *, rate: float = 100e6, delay_s: float = 0.001) -> None:
        self.source = BlobsInMemory()
        self.store = BlobsInMemory()
        self.in_use: set[bytes] = set()
        self.receiver = BlobReceiver(self.store, lambda: self.in_use)
        self.numbers = count(1)
        self.rate, self.delay_s = rate, delay_s
        self.now = 0.0
        self.outcomes: list[Outcome] = []
        self.chunk_bytes = 0
        self.most_in_flight = 0
        self.log: list[object] = []
        self.connect()

    def connect(self) -> None:
        """A new link."""
        self.sender = BlobSender(self.source, self.numbers)
        self._down: deque[tuple[float, bytes]] = deque()
        self._up: deque[tuple[float, bytes]] = deque()
        self._free_at = self.now

    def cut(self) -> None:
        """The link is lost with all that is on its way."""
        self.receiver.link_down(self.now)
        self.receiver.validate_state()
        self.connect()

    def offer(self, *blobs: BlobRef) -> None:
        for blob in blobs:
            self.sender.offer("request", blob)

    def inject(self, *messages: object) -> list[object]:
        """Give the receiver messages of a sender that breaks the rules; gives its answers."""
        for message in messages:
            self.receiver.receive(message, self.now)
            self.receiver.validate_state()
        self.receiver.settle()
        return self.receiver.messages()

    def step(self) -> bool:
        """One turn of each side, then time goes to what comes next; False when all is quiet."""
        if self.sender.ready:
            for message in self.sender.next_messages(self.now):
                self._send_down(message)
        self.receiver.settle()
        for message in self.receiver.messages():
            self._up.append((self.now + self.delay_s, LINK.encode(message)))
        self.sender.validate_state()
        self.receiver.validate_state()
        self.outcomes += self.sender.outcomes()
        if self.sender.ready:
            return True
        return self._arrive()

    def run(self, until_s: float = 3600.0) -> list[Outcome]:
        """Until all is quiet; gives the outcomes."""
        while self.now < until_s and self.step():
            pass
        self.outcomes += self.sender.outcomes()
        return self.outcomes

    def _send_down(self, message: object) -> None:
        data = LINK.encode(message)
        if isinstance(message, XferChunk):
            self.chunk_bytes += len(message.data)
        self.most_in_flight = max(self.most_in_flight, self.sender.window.in_flight_bytes)
        self.log.append(message)
        self._free_at = max(self._free_at, self.now) + len(data) / self.rate
        self._down.append((self._free_at + self.delay_s, data))

    def _arrive(self) -> bool:
        ways = [way for way in (self._down, self._up) if way]
        if not ways:
            return False
        way = min(ways, key=lambda each: each[0][0])
        at, data = way.popleft()
        self.now = max(self.now, at)
        message = LINK.decode(data)
        if way is self._down:
            self.receiver.receive(message, self.now)
        else:
            self.sender.receive(message, self.now)
        return True
