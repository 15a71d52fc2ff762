"""What the bodies of jobs hold, by kind: structs that travel as msgpack maps.

A body may grow by keys with defaults; keys that a peer does not know are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgpack

from bus.api_maps import from_map, to_map
from bus.errors import Invalid
from bus.fields import MaxBytes, MaxItems, OneOf, Range
from bus.ids import PackedIds
from bus.messages.link_jobs import MAX_JOB_BYTES
from bus.messages.parts import U32, U63, Name
from bus.messages.worker import (
    MAX_EMBED_INPUTS,
    MAX_VECTOR_BYTES,
    MAX_WINDOW_SEGMENTS,
    SpokenSegment,
)
from bus.unpacking import unpack

#: Kinds of jobs.
EMBED = "embed"
TRANSCRIBE = "transcribe"

POOLINGS = frozenset({"", "mean", "cls"})
B = TypeVar("B")


def pack_body(body: object) -> bytes:
    """A struct as the body of a job, a part or an end."""
    packed: bytes = msgpack.packb(to_map(body))
    return packed


def unpack_body(cls: type[B], data: bytes) -> B:
    """The struct in a body.

    Raises:
        DecodeError: it is not msgpack.
        Invalid: it is no such struct; `param` names what is wrong.
    """
    values = unpack(data, max_bytes=MAX_JOB_BYTES)
    if type(values) is not dict:
        raise Invalid(f"the body of a {cls.__name__} should be a map", param="body")
    return from_map(cls, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedBody:
    """Texts as ids, with what the tokenizer puts around them; the rest as in `worker.Embed`."""

    inputs: Annotated[tuple[PackedIds, ...], MaxItems(MAX_EMBED_INPUTS)]
    pooling: Annotated[str, OneOf(POOLINGS)] = ""
    normalize: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedPart:
    """Vectors of `count` inputs from the `index`-th on: float32, little-endian, one by one."""

    index: U32
    count: U32
    dimension: U32
    vectors: Annotated[bytes, MaxBytes(MAX_EMBED_INPUTS * MAX_VECTOR_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedEnd:
    """How many tokens all inputs had."""

    tokens: U63 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeBody:
    """As in `worker.Transcribe`; the file is the job's one."""

    language: Name = ""
    from_s: Annotated[float, Range(0.0, 1e9)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribePart:
    """One window, as in `worker.TranscribedWindow`; a job can go on from `next_s` elsewhere."""

    segments: Annotated[tuple[SpokenSegment, ...], MaxItems(MAX_WINDOW_SEGMENTS)]
    next_s: Annotated[float, Range(0.0, 1e9)]
    language: Name = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeEnd:
    """As in `worker.Transcribed`."""

    language: Name = ""
    duration_s: Annotated[float, Range(0.0, 1e9)] = 0.0
