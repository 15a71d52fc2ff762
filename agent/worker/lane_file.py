"""A parked lane: keys and values of a session in a file, checked whole before they are used.

    start    magic, version, length of the header, BLAKE2b-256 of the header
    header   msgpack: whose lane it is, of which model, numerics and layout, its ids, how they were
             computed, their digest, BLAKE2b-256 of the payload
    payload  `[layer_parts, kv_heads, tokens, head_dim]`, dense, little-endian

A file is a view of what the head has: it may be lost, stale, damaged or another's, and then the
tokens are computed again. So nothing here fails over a file's content: it is `Unusable`, with the
reason. No size in a file is believed before it was compared with the file's own and with what is
wanted, so a hostile file costs no more memory than an honest one.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt

from agent.worker.kv_cache import LaneLayout, SavedLane
from agent.worker.lane_folder import UnreadableError, lane_path, open_lane, replace_lane, touch
from agent.worker.spans import Spans, common_tokens, make_spans, usable
from bus.codec import Codec
from bus.context import context_digest
from bus.errors import DecodeError, Internal, StorageFull
from bus.fields import MaxBytes, MaxItems
from bus.ids import NumericsId, PackedIds, SessionId, count_ids, pack_ids, unpack_ids
from bus.messages.parts import U32, Segment

MAGIC: Final = b"SFLANE\r\n"
VERSION: Final = 1
#: A header of a million ids with their segments is 6 MiB.
MAX_HEADER_BYTES: Final = 8 << 20

_START: Final = struct.Struct("<8sII32s")
_DIGEST_BYTES: Final = 32
_PIECE_BYTES: Final = 1 << 20

#: `Unusable.code` of a session without a file.
MISSING: Final = "missing"

LANE_FILE = Codec("lane file", max_bytes=MAX_HEADER_BYTES)


@LANE_FILE.message(tag=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class LaneHeader:
    """Whose keys and values follow. `model` is the digest of the model's files."""

    session: Annotated[SessionId, MaxBytes(64)]
    model: Annotated[str, MaxBytes(128)]
    numerics: Annotated[NumericsId, MaxBytes(128)]
    layout: LaneLayout
    ids: PackedIds
    #: Cover the ids: which were computed by chunk, and which by step.
    segments: Annotated[tuple[Segment, ...], MaxItems(65536)]
    #: Leading tokens that are bit for bit what `segments` and `numerics` give.
    exact_tokens: U32
    token_digest: Annotated[bytes, MaxBytes(16)]
    payload_digest: Annotated[bytes, MaxBytes(_DIGEST_BYTES)]

    @property
    def tokens(self) -> int:
        return count_ids(self.ids)

    @property
    def payload_bytes(self) -> int:
        return self.tokens * self.layout.token_bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a lane is to be continued with.

    Attributes:
        model: digest of the model's files.
        max_tokens: that a lane of this worker holds.
        ids: of the context; one of them at least is computed anew.
        spans: how they are to be computed.
        grid: whether chunks keep to the middles of blocks (`chunk_grid`).
    """

    session: SessionId
    model: str
    numerics: NumericsId
    layout: LaneLayout
    max_tokens: int
    ids: array[int]
    spans: Spans
    grid: bool = False


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why nothing of a file can be used: `code` for programs, `reason` for people."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """A file whose header fits: `tokens` of it can be used.

    The first `exact_tokens` are bit for bit what this worker would compute; `problem` says why not
    all are.
    """

    path: Path
    header: LaneHeader
    tokens: int
    exact_tokens: int
    problem: str
    #: Names the content: the header's digest, which covers the payload's.
    start: bytes


@dataclass(frozen=True, slots=True)
class Restored:
    """Keys and values of a session's first `saved.tokens` tokens; the rest as in `Found`.

    `spans` say how they were computed.
    """

    saved: SavedLane
    exact_tokens: int
    problem: str
    spans: Spans

    @property
    def exact(self) -> bool:
        return self.exact_tokens == self.saved.tokens


class _RefusedError(Exception):
    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.unusable = Unusable(code, reason)


# --- to a file --------------------------------------------------------------------------------


def park(
    folder: Path,
    session: SessionId,
    saved: SavedLane,
    *,
    ids: array[int],
    spans: Spans,
    exact_tokens: int,
    model: str,
    numerics: NumericsId,
) -> int:
    """Write a lane to the session's file, in place of an older one; whole or not at all, durable.

    Args:
        folder: made 0700 when missing; files in it are 0600.
        session: whose lane it is.
        saved: its keys and values.
        ids: of the tokens to park, at most `saved.tokens`.
        spans: how they were computed.
        exact_tokens: leading tokens that are bit for bit what spans and numerics give.
        model: digest of the model's files.
        numerics: what they were computed with.

    Returns:
        Bytes of the file.

    Raises:
        StorageFull: the file can not be written.
    """
    if not 0 < len(ids) <= saved.tokens or sys.byteorder != "little":
        raise Internal(f"{len(ids)} ids do not name {saved.tokens} saved tokens")
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for row in _rows(saved, len(ids)):
        digest.update(row)
    packed = pack_ids(ids)
    header = LANE_FILE.encode(
        LaneHeader(
            session=session,
            model=model,
            numerics=numerics,
            layout=saved.layout,
            ids=packed,
            segments=_segments(spans, len(ids)),
            exact_tokens=min(exact_tokens, len(ids)),
            token_digest=context_digest(packed),
            payload_digest=digest.digest(),
        )
    )
    start = _START.pack(MAGIC, VERSION, len(header), _digest(header))
    try:
        rows = _rows(saved, len(ids))
        return replace_lane(lane_path(folder, session), chain((start, header), rows))
    except OSError as error:
        raise StorageFull(
            f"session {session} can not be parked in {folder}: {error.strerror}; make room there, "
            "or name another folder"
        ) from error


def _rows(saved: SavedLane, tokens: int) -> Iterator[memoryview]:
    """The first tokens of each head of each layer part; nothing is copied."""
    layout = saved.layout
    for part, head in product(range(layout.layer_parts), range(layout.kv_heads)):
        yield _bytes_of(saved.data[part, head, :tokens])


def _segments(spans: Spans, tokens: int) -> tuple[Segment, ...]:
    """Spans as segments; what lies behind the last went by step."""
    segments = []
    start = 0
    for stop, by_step in [*((span.stop, span.by_step) for span in spans), (tokens, True)]:
        stop = min(stop, tokens)
        if stop > start:
            segments.append(Segment(tokens=stop - start, by_step=by_step))
            start = stop
    return tuple(segments)


# --- from a file ------------------------------------------------------------------------------


def restore(folder: Path, wanted: Wanted) -> Restored | Unusable:
    """What of a session's parked lane can be used: `find_lane`, then `load_lane`."""
    found = find_lane(folder, wanted)
    return found if isinstance(found, Unusable) else load_lane(found)


def find_lane(folder: Path, wanted: Wanted) -> Found | Unusable:
    """Look at a session's file and say how much of it can be used; reads the header alone."""
    path = lane_path(folder, wanted.session)
    try:
        with open_lane(path) as file:
            start, header = _read_header(file)
            _check_sizes(file, header)
    except FileNotFoundError:
        return Unusable(MISSING, f"session {wanted.session} is not parked here")
    except (UnreadableError, OSError) as error:
        return _unreadable(path, error)
    except _RefusedError as refusal:
        return refusal.unusable
    return _fit(path, start, header, wanted)


def load_lane(found: Found) -> Restored | Unusable:
    """Read the tokens that `find_lane` promised, and check the whole payload.

    The file counts as used now (`purge_lanes`).

    Raises:
        Internal: there is no memory for them.
    """
    try:
        with open_lane(found.path) as file:
            start, header = _read_header(file)
            if start != found.start:
                raise _RefusedError("replaced", f"{found.path} was replaced meanwhile; try again")
            saved = _read_payload(file, header, found.tokens)
            touch(file)
    except (UnreadableError, OSError) as error:  # It may be gone by now, too.
        return _unreadable(found.path, error)
    except _RefusedError as refusal:
        return refusal.unusable
    spans = make_spans(header.segments, header.tokens)
    return Restored(saved, found.exact_tokens, found.problem, spans)


def _unreadable(path: Path, error: OSError | UnreadableError) -> Unusable:
    reason = f"can not be read: {error.strerror}" if isinstance(error, OSError) else str(error)
    return Unusable("unreadable", f"{path} {reason}")


def _read_header(file: BufferedReader) -> tuple[bytes, LaneHeader]:
    start = _read(file, _START.size)
    magic, version, length, digest = _START.unpack(start)
    if magic != MAGIC:
        raise _RefusedError("damaged", f"{file.name} is no parked lane; remove it")
    if version != VERSION:
        raise _RefusedError("version", f"the lane was parked by format {version}, not {VERSION}")
    if length > MAX_HEADER_BYTES:
        raise _damaged(f"a header of {length} bytes")
    raw = _read(file, length)
    if _digest(raw) != digest:
        raise _damaged("the header is not what was written")
    try:
        header = LANE_FILE.decode(raw)
    except DecodeError as error:
        raise _damaged(str(error)) from None
    if not isinstance(header, LaneHeader):
        raise _damaged("the header is of another kind")
    return start, header


def _check_sizes(file: BufferedReader, header: LaneHeader) -> None:
    covered = sum(segment.tokens for segment in header.segments)
    if not header.tokens or covered != header.tokens:
        raise _damaged(f"its segments cover {covered} of {header.tokens} tokens")
    if context_digest(header.ids) != header.token_digest:
        raise _damaged("the ids are not those that were parked")
    if header.layout.dtype not in ("float32", "float16"):
        raise _damaged(f"values of type {header.layout.dtype}")
    size = os.fstat(file.fileno()).st_size
    if size != file.tell() + header.payload_bytes:
        raise _damaged(f"{size} bytes and not {file.tell() + header.payload_bytes}")


def _fit(path: Path, start: bytes, header: LaneHeader, wanted: Wanted) -> Found | Unusable:
    if header.session != wanted.session:
        return Unusable("other_session", f"{path} is of session {header.session!r}")
    if header.model != wanted.model:
        return Unusable("other_model", "the lane was parked with other files of the model")
    if header.layout != wanted.layout:
        return Unusable("other_layout", f"the lane is {header.layout}, this worker's are not")
    if header.tokens > wanted.max_tokens:
        reason = f"the lane has {header.tokens} tokens, this worker's at most {wanted.max_tokens}"
        return Unusable("too_long", reason)
    spans = make_spans(header.segments, header.tokens)
    # The last of the context is left to compute.
    limit = max(0, min(header.tokens, len(wanted.ids) - 1))
    common = common_tokens(unpack_ids(header.ids), wanted.ids, limit)
    tokens = usable(wanted.spans, spans, common, exact=False, grid=wanted.grid)
    if not tokens:
        return Unusable("other_text", "the lane's tokens are not those of the session now")
    if header.numerics != wanted.numerics:
        problem = f"the lane was computed with numerics {header.numerics}, now {wanted.numerics}"
        return Found(path, header, tokens, 0, problem, start)
    known = min(tokens, header.exact_tokens)
    exact = min(tokens, usable(wanted.spans, spans, known, exact=True, grid=wanted.grid))
    problem = "the lane's tokens were computed by chunk and step in another way"
    return Found(path, header, tokens, exact, "" if exact == tokens else problem, start)


def _read_payload(file: BufferedReader, header: LaneHeader, tokens: int) -> SavedLane:
    layout = header.layout
    saved = SavedLane.empty(layout, tokens)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    token_bytes = layout.token_bytes // (layout.layer_parts * layout.kv_heads)
    for room in _rows(saved, tokens):
        if file.readinto(room) != len(room):
            raise _damaged("it ends too early")
        digest.update(room)
        left = (header.tokens - tokens) * token_bytes
        while left:
            piece = _read(file, min(left, _PIECE_BYTES))
            digest.update(piece)
            left -= len(piece)
    if file.read(1) or digest.digest() != header.payload_digest:
        raise _damaged("keys and values are not what was written")
    return saved


def _read(file: BufferedReader, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise _damaged("it ends too early")
    return data


def _damaged(what: str) -> _RefusedError:
    return _RefusedError("damaged", f"the parked lane is damaged: {what}")


def _bytes_of(values: npt.NDArray[Any]) -> memoryview:
    """The memory of a dense array."""
    return values.reshape(-1).view(np.uint8).data


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
