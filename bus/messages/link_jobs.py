"""Link-F messages about jobs: work of a node that makes no session (capability `jobs`).

    JobStart ──▶ JobPart 0, 1, ... ──▶ JobEnd          parts go as far as JobMore lets them
       └──JobCancel──▶ nothing more

A job may be done again elsewhere, so the node keeps nothing of it: a link that ends, ends its jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.fields import MaxBytes, MaxItems, OneLine
from bus.ids import GenerationId, ModelName
from bus.messages.link_codec import LINK
from bus.messages.parts import U8, U32, U63, BlobRef, Name

#: What a job is asked with, and its files.
MAX_JOB_BYTES = 8 * 1024 * 1024
MAX_JOB_FILES = 64
#: Of one part. It fits a frame, so that nothing waits for more than one of them.
MAX_PART_BYTES = 127 * 1024
#: Parts that a node may send before the head takes more.
FIRST_PARTS = 16
#: Codes of JobEnd beside those of bus/errors.py: the node can not, at least not now.
MODEL_NOT_SERVED = "model_not_served"
MODEL_NOT_READY = "model_not_ready"
WORKER_BEHIND = "worker_behind"
UNKNOWN_KIND = "unknown_kind"
#: The worker died that had the job.
WORKER_LOST = "worker_lost"


@LINK.message(tag=40, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """Do a job with a model. Answered by JobPart, any number of them, and one JobEnd.

    `job` is one of the head's generation numbers, new for each try. `body` is a msgpack map that
    the kind says how to read. `wall_ms` 0 is no limit.
    """

    job: GenerationId
    model: Annotated[ModelName, MaxBytes(256), OneLine()]
    kind: Name
    body: Annotated[bytes, MaxBytes(MAX_JOB_BYTES)] = b"\x80"
    blobs: Annotated[tuple[BlobRef, ...], MaxItems(MAX_JOB_FILES)] = ()
    qos: U8 = 0
    wall_ms: U63 = 0


@LINK.message(tag=41, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class JobMore:
    """The head takes all parts whose `seq` is below `parts`; it never takes that back."""

    job: GenerationId
    parts: U32


@LINK.message(tag=42, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancel:
    """Nobody waits for the job; nothing more of it is sent. Unknown ones are passed over."""

    job: GenerationId


@LINK.message(tag=43, priority=3)
@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """Some of what a job gives: the `seq`-th part, from 0 on, in order."""

    job: GenerationId
    seq: U32
    body: Annotated[bytes, MaxBytes(MAX_PART_BYTES)]


@LINK.message(tag=44, priority=3)
@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """The job is done, after `parts` parts, or with a `code` it is not: nothing more comes of it.

    `length` and `max` are set when a limit was the reason.
    """

    job: GenerationId
    parts: U32 = 0
    body: Annotated[bytes, MaxBytes(MAX_PART_BYTES)] = b"\x80"
    code: Name = ""
    message: Annotated[str, MaxBytes(2048), OneLine()] = ""
    param: Name = ""
    length: U63 = 0
    max: U63 = 0
