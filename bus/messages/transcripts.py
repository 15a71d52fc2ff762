"""What clients and the head say to each other about transcripts (docs/api.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.fields import MaxItems, Range
from bus.ids import ModelName
from bus.messages.api import Qos, Sha256
from bus.messages.parts import U32, Name
from bus.messages.worker import MAX_WINDOW_SEGMENTS, SpokenSegment

#: The type of the events that carry segments.
SEGMENTS = "segments"

Seconds = Annotated[float, Range(0.0, 1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeRequest:
    """Write what is said in a file that was put.

    `language` is a code; empty is the model's own, or what it hears. `from_s` is a `next_s` of an
    earlier request for the same file: what lies before it is left out.
    """

    model: ModelName
    sha256: Sha256
    language: Name = ""
    from_s: Seconds = 0.0
    max_wall_ms: U32 = 0
    qos: Qos = "interactive"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsEvent:
    """What is said up to `next_s`, from where the last event ended; may be nothing."""

    segments: Annotated[tuple[SpokenSegment, ...], MaxItems(MAX_WINDOW_SEGMENTS)]
    next_s: Seconds
    language: Name
    type: str = SEGMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEnd:
    """What the end says of the whole file."""

    language: Name = ""
    duration_s: Seconds = 0.0
