"""Files that clients put: in parts, in order; they are there when the last part is on disk.

An upload belongs to its connection: it is dropped with it, and after a minute without a part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from bus.errors import BlobMissing, Invalid, RateLimited, StorageFull, SuperfluidError, TooLarge
from bus.messages.api import MAX_BLOB_PART_BYTES, PutBlobRequest, error_body
from bus.messages.parts import BlobRef
from bus.timers import Timers
from bus.transfer import MAX_REQUEST_BYTES, SHA256_BYTES, BlobStore, Partial, Settled, name_of
from head.effects import ClientKey, Reply
from head.operation import ApiRequest
from head.outbox import Outbox

#: Uploads that one connection, and all together, may have open; each is an open file.
MAX_OF_CLIENT = 8
MAX_UPLOADS = 64
IDLE_S = 60.0

#: Told once of bytes that were to be kept: their name, or why they are not.
Kept = Callable[[BlobRef | SuperfluidError], None]


@dataclass(slots=True)
class _Upload:
    client: ClientKey
    partial: Partial
    heard_at: float
    #: The request with the last part, once that has come.
    last: ApiRequest | None = None


class Uploads:
    """Owned by the core.

    Args:
        store: where the files go.
        in_use: gives the hashes that unfinished answers name; these stay.
    """

    def __init__(
        self,
        outbox: Outbox,
        store: BlobStore,
        timers: Timers,
        in_use: Callable[[], Collection[bytes]],
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._timers = timers
        self._in_use = in_use
        self._uploads: dict[tuple[ClientKey, bytes], _Upload] = {}
        #: Who waits for bytes that came inside a request.
        self._inside: dict[Partial, Kept] = {}
        self._timer: int | None = None

    def __len__(self) -> int:
        return len(self._uploads)

    def length(self, sha256: bytes) -> int | None:
        """The length of a file that is here; None when it is not."""
        check_hash(sha256)
        return self._store.length(sha256)

    def find(self, hashes: Iterable[bytes]) -> tuple[BlobRef, ...]:
        """The files that a request names; see `find_blobs`."""
        return find_blobs(self._store, hashes)

    def put(self, request: ApiRequest, asked: PutBlobRequest, now: float) -> None:
        """Take a part of a file.

        Raises:
            SuperfluidError: it can not be taken; a part at the wrong offset leaves the upload.
        """
        data = _only_part(request)
        check_hash(asked.sha256)
        key = request.client, asked.sha256
        known = self._store.length(asked.sha256)
        if known is not None:
            if known != asked.length:
                raise Invalid(f"that file has {known} bytes, not {asked.length}", param="length")
            # Another client's upload was faster: nobody needs the rest of this one.
            if (mine := self._uploads.get(key)) is not None and mine.last is None:
                self._drop(key, mine)
            self._outbox.reply(request.end({"offset": known, "done": True}))
            return
        upload = self._uploads.get(key) or self._begin(request, asked, now)
        upload.heard_at = now
        self._check_part(upload, asked, data)
        try:
            self._store.write(upload.partial, data)
        except SuperfluidError:
            del self._uploads[key]
            raise
        if upload.partial.received < asked.length:
            self._outbox.reply(request.end({"offset": upload.partial.received, "done": False}))
            return
        self._finish(upload, request)

    def keep(self, data: bytes, then: Kept) -> None:
        """Keep bytes that came whole inside a request, as a file under their hash.

        Args:
            then: called when they are on disk, at once when they were.
        """
        blob = blob_of(data)
        if self._store.length(blob.sha256) is not None:
            then(blob)
            return
        try:
            partial = self._store.begin(blob, self._in_use())
            self._store.write(partial, data)
        except SuperfluidError as error:
            then(error)
            return
        self._inside[partial] = then
        self._store.keep(partial)

    def settle(self) -> None:
        """The store may have put files on disk."""
        for settled in self._store.settled():
            if (then := self._inside.pop(settled.partial, None)) is not None:
                then(settled.error or settled.partial.blob)
            sha256 = settled.partial.blob.sha256
            for key in [key for key in self._uploads if key[1] == sha256]:
                upload = self._uploads[key]
                if upload.partial is settled.partial and upload.last is not None:
                    del self._uploads[key]
                    self._answer(upload.last, settled)

    def _answer(self, last: ApiRequest, settled: Settled) -> None:
        if settled.error is None:
            length = settled.partial.blob.length
            self._outbox.reply(last.end({"offset": length, "done": True}))
        else:
            body = error_body(last.id, settled.error)
            self._outbox.reply(Reply(client=last.client, body=body))

    def client_gone(self, client: ClientKey) -> None:
        """Drop what a client had not finished."""
        for key, upload in list(self._uploads.items()):
            if key[0] == client:
                self._drop(key, upload)

    # --- inside -------------------------------------------------------------------------------

    def _begin(self, request: ApiRequest, asked: PutBlobRequest, now: float) -> _Upload:
        if asked.offset:
            raise Invalid(
                "this connection is putting no such file; begin at offset 0",
                param="offset",
                details={"offset": 0},
            )
        if asked.length > MAX_REQUEST_BYTES:
            raise TooLarge(
                f"a file of {asked.length} bytes; {MAX_REQUEST_BYTES} is the most", param="length"
            )
        mine = sum(client == request.client for client, _ in self._uploads)
        if mine >= MAX_OF_CLIENT or len(self._uploads) >= MAX_UPLOADS:
            raise RateLimited(
                f"{mine} files of this connection and {len(self._uploads)} in all are being put; "
                "finish one first",
                retry_after_ms=1000,
            )
        blob = BlobRef(sha256=asked.sha256, length=asked.length)
        made = _Upload(request.client, self._store.begin(blob, self._in_use()), now)
        self._uploads[request.client, asked.sha256] = made
        if self._timer is None:
            self._timer = self._timers.at(now + IDLE_S, self._drop_idle)
        return made

    def _check_part(self, upload: _Upload, asked: PutBlobRequest, data: bytes) -> None:
        received, length = upload.partial.received, upload.partial.blob.length
        if upload.last is not None:
            raise Invalid("all of this file has come; wait for its end", param="offset")
        if asked.length != length:
            raise Invalid(f"length was {length} before and is {asked.length} now", param="length")
        if asked.offset != received:
            raise Invalid(
                f"a part at offset {asked.offset}; {received} is next",
                param="offset",
                details={"offset": received},
            )
        if received + len(data) > length:
            raise Invalid(f"a part up to {received + len(data)} of {length} bytes", param="offset")
        if not data and length:
            raise Invalid("an empty part; send at least one byte", param="offset")

    def _finish(self, upload: _Upload, request: ApiRequest) -> None:
        if not upload.partial.matches:
            self._drop((request.client, upload.partial.blob.sha256), upload)
            raise Invalid(
                "the file's SHA-256 is not the one that it was put under; hash it again",
                param="sha256",
            )
        upload.last = request
        self._store.keep(upload.partial)

    def _drop(self, key: tuple[ClientKey, bytes], upload: _Upload) -> None:
        del self._uploads[key]
        if upload.last is None:
            self._store.drop(upload.partial)

    def _drop_idle(self, now: float) -> None:
        self._timer = None
        for key, upload in list(self._uploads.items()):
            if upload.last is None and upload.heard_at + IDLE_S <= now:
                self._drop(key, upload)
        if self._uploads:
            due = min(upload.heard_at for upload in self._uploads.values()) + IDLE_S
            self._timer = self._timers.at(max(due, now + 1.0), self._drop_idle)


def blob_of(data: bytes) -> BlobRef:
    """The name of bytes."""
    return BlobRef(sha256=hashlib.sha256(data).digest(), length=len(data))


def check_hash(sha256: bytes, param: str = "sha256") -> None:
    """See that a hash can be one.

    Raises:
        Invalid: it has another length.
    """
    if len(sha256) != SHA256_BYTES:
        raise Invalid(f"{param} has {len(sha256)} bytes; SHA-256 has {SHA256_BYTES}", param=param)


def find_blobs(store: BlobStore, hashes: Iterable[bytes]) -> tuple[BlobRef, ...]:
    """The files that a request names, in its order.

    Raises:
        Invalid: one is no SHA-256.
        BlobMissing: some are not here; details name them.
    """
    found, missing = [], []
    for place, sha256 in enumerate(hashes):
        check_hash(sha256, f"blobs[{place}]")
        length = store.length(sha256)
        if length is None:
            missing.append(sha256)
        else:
            found.append(BlobRef(sha256=sha256, length=length))
    if missing:
        named = ", ".join(name_of(sha256) for sha256 in missing[:4])
        raise BlobMissing(
            f"the head does not have {named}; put it with put_blob, then ask again",
            param="blobs",
            details={"missing": [sha256.hex() for sha256 in missing]},
        )
    return tuple(found)


class NoFiles:
    """The store of a head that has no folder for files."""

    def length(self, sha256: bytes) -> int | None:
        return None

    def begin(self, blob: BlobRef, in_use: Collection[bytes]) -> Partial:
        raise StorageFull("this head keeps no files")

    def write(self, partial: Partial, data: bytes) -> None:
        raise StorageFull("this head keeps no files")

    def keep(self, partial: Partial) -> None:
        """Nothing was begun."""

    def drop(self, partial: Partial) -> None:
        """Nothing was begun."""

    def settled(self) -> list[Settled]:
        return []

    def read(self, sha256: bytes, offset: int, size: int) -> bytes:
        raise BlobMissing("this head keeps no files")

    def remove(self, sha256: bytes) -> None:
        """There is none."""


NO_FILES = NoFiles()


def _only_part(request: ApiRequest) -> bytes:
    if len(request.blobs) != 1:
        raise Invalid(
            f"{len(request.blobs)} frames after the body; send one, with the part's bytes"
        )
    if len(request.blobs[0]) > MAX_BLOB_PART_BYTES:
        raise TooLarge(
            f"a part of {len(request.blobs[0])} bytes; {MAX_BLOB_PART_BYTES} is the most"
        )
    return request.blobs[0]
