"""Link-F messages about transfers: blobs that go to a node, in chunks (capability `blobs`).

Their course is in bus/transfer.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.fields import MaxBytes, OneLine, OneOf
from bus.messages.link_codec import LINK
from bus.messages.parts import U63, BlobRef, Name, Position

TransferId = U63
#: What a transfer carries.
BLOB_KINDS = frozenset({"request", "model", "kv"})


@LINK.message(tag=32, priority=4)
@dataclass(frozen=True, slots=True, kw_only=True)
class XferBegin:
    """A blob is offered; nothing of it goes before the first `XferCredit` says where to start."""

    transfer: TransferId
    kind: Annotated[str, OneOf(BLOB_KINDS)]
    blob: BlobRef


@LINK.message(tag=33, priority=4)
@dataclass(frozen=True, slots=True, kw_only=True)
class XferChunk:
    transfer: TransferId
    offset: Position
    data: Annotated[bytes, MaxBytes(128 * 1024)]


@LINK.message(tag=34, priority=4)
@dataclass(frozen=True, slots=True, kw_only=True)
class XferEnd:
    """Everything was sent; the receiver answers `XferDone`."""

    transfer: TransferId


@LINK.message(tag=35, priority=4)
@dataclass(frozen=True, slots=True, kw_only=True)
class XferAbort:
    """The sender gives a transfer up; what came of it may be kept for a later one."""

    transfer: TransferId
    reason: Annotated[str, MaxBytes(1024), OneLine()]


@LINK.message(tag=36, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class XferCredit:
    """The receiver takes bytes from `offset` up to `limit`; the first one says where to start."""

    transfer: TransferId
    offset: Position
    limit: Position


@LINK.message(tag=37, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class XferDone:
    """The end of a transfer: `ok` (hash verified, kept), `have` (it was there) or `error`."""

    transfer: TransferId
    sha256: Annotated[bytes, MaxBytes(32)]
    result: Annotated[str, OneOf(frozenset({"ok", "have", "error"}))]
    code: Name = ""
    message: Annotated[str, MaxBytes(1024), OneLine()] = ""
