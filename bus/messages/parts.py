"""What messages are made of: numbers and names with their limits, and structs that several carry.

Names and sentences are `OneLine`: this is where a peer's words come in that a person may read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.fields import MaxBytes, MaxItems, OneLine, OneOf, Range
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    ModelName,
    NumericsId,
    PackedIds,
    SessionId,
    WorkerIncarnation,
)

U8 = Annotated[int, Range(0, 255)]
U32 = Annotated[int, Range(0, 2**32 - 1)]
#: Numbers of peers that the head stores; SQLite's integers are signed.
U63 = Annotated[int, Range(0, 2**63 - 1)]
#: A place in a file or among the events of a generation; also how long one is.
Position = Annotated[int, Range(0, 2**40)]
Name = Annotated[str, MaxBytes(128), OneLine()]
Fraction = Annotated[float, Range(0.0, 1.0)]

#: Why a generation ended, as the worker says it.
FINISH_REASONS = frozenset({"eos", "stop", "length", "cancelled", "expired", "refused", "error"})
#: Model phases that a node reports; `unloading` only to a head that can ask for it.
MODEL_PHASES = frozenset({"loading", "ready", "failed", "unloading"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a context: how many tokens, and whether they were computed one by one.

    Prompts go by chunk, generated tokens by step; replaying them the same way is bit-exact.
    """

    tokens: U32
    by_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """Which part of which model a folder holds: layers `first` to `end`, not including it.

    `model` is the whole model's name and `whole` names its content, equal for all stages of it.
    `hidden` is the width of hidden states, `hidden_type` what this stage computes them in. `folder`
    is what the node itself calls it.
    """

    model: Annotated[ModelName, MaxBytes(256), OneLine()]
    whole: Name
    index: Annotated[int, Range(0, 255)]
    stages: Annotated[int, Range(1, 256)]
    first: U32
    end: U32
    layers: U32
    hidden: U32
    hidden_type: Name = "float32"
    folder: Annotated[ModelName, MaxBytes(256), OneLine()] = ModelName("")

    @property
    def is_last(self) -> bool:
        """Whether it ends in logits, so that its worker draws for the whole chain."""
        return self.end >= self.layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One model on one node. Rates are tokens/s measured while busy; 0 is not yet known.

    `worker_phase` and `steps` are the worker's progress, as in `WorkerBeat`. `kind` is
    what it is: empty for a decoder, `encoder`, `transcriber`, `stage`; empty before it is known.
    `text_digest` names the files that its texts go by (bus/text/tokenizer_files.py),
    `weights_digest` its weights: 0 where the node does not say. `stage` is set where it is a part
    of a model: the last one has the name of the whole and is ready when its chain is open, the
    others have names of their own and the kind `stage`.
    """

    name: Annotated[ModelName, OneLine()]
    phase: Annotated[str, OneOf(MODEL_PHASES)]
    problem: Annotated[str, MaxBytes(1024), OneLine()] = ""
    window_tokens: U32 = 0
    lanes_total: U32 = 0
    lanes_used: U32 = 0
    queued: U32 = 0
    kv_live_tokens: int = 0
    kv_total_tokens: int = 0
    decode_rate: Annotated[float, Range(0.0, 1e9)] = 0.0
    prefill_rate: Annotated[float, Range(0.0, 1e9)] = 0.0
    tokenizer_digest: int = 0
    numerics: NumericsId = NumericsId("")
    worker: Annotated[WorkerIncarnation, Range(0, 2**63 - 1)] = WorkerIncarnation(0)
    device: Annotated[str, MaxBytes(64), OneLine()] = ""
    prefixes: Annotated[tuple[Annotated[bytes, MaxBytes(32)], ...], MaxItems(4096)] = ()
    worker_phase: Name = ""
    steps: int = 0
    kind: Name = ""
    text_digest: int = 0
    weights_digest: int = 0
    stage: StageStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """A node's machine: bytes of memory, one-minute load average."""

    memory_total_bytes: int = 0
    memory_free_bytes: int = 0
    gpu_total_bytes: int = 0
    gpu_free_bytes: int = 0
    blob_budget_bytes: int = 0
    load_average: Annotated[float, Range(0.0, 1e6)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBeat:
    """A worker's progress: turns since its start, and what it does (idle, prefill, decode).

    A model without a worker that is ready has the phase loading, failed, or hung while a worker
    that was given up is being killed.
    """

    model: Annotated[ModelName, OneLine()]
    worker: WorkerIncarnation
    phase: Name
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRef:
    session: SessionId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRef:
    """The first fields of a command about a session under an epoch, and of what answers it."""

    command: CommandId
    session: SessionId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One run of a program: a random nonce tells it from every other, the rest is for people.

    `started_at_s` is wall-clock time, seconds since 1970 to the end of the year 9999, which is what
    a date can show.
    """

    nonce: Annotated[bytes, MaxBytes(16)] = b""
    pid: U32 = 0
    host: Name = ""
    started_at_s: Annotated[float, Range(0.0, 253_402_300_799.0)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a generation cost, in tokens."""

    prompt_tokens: U32 = 0
    cached_tokens: U32 = 0
    completion_tokens: U32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a generation. `length` and `max` are set when a limit was the reason."""

    reason: Annotated[str, OneOf(FINISH_REASONS)]
    error_code: Name = ""
    message: Annotated[str, MaxBytes(2048), OneLine()] = ""
    param: Name = ""
    length: int = 0
    max: int = 0
    usage: Usage = Usage()
    #: The stop string that ended it; empty for a stop id and every other reason.
    stop: Annotated[str, MaxBytes(256)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRun:
    """Tokens of one generation in a row, and its finish when these are the last.

    `event_seq` counts tokens: the first id has `first_seq`, the next one more; a finish takes the
    number after the last token. A run may be cut or joined anywhere when it is sent again.
    `logprobs` has one record a token, all of one size, little-endian: the chosen token's
    log-probability (float32), then id (u32) and log-probability of each of the others asked for.
    `cached`, with the first token, says how many of the context's tokens were not computed.
    """

    session: SessionId
    epoch: Epoch
    generation: GenerationId
    first_seq: Position
    ids: PackedIds = PackedIds(b"")
    finish: Finish | None = None
    logprobs: bytes = b""
    cached: U32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """All events below `committed` of a generation are durable on the head (a finish counts)."""

    generation: GenerationId
    committed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationView:
    """A generation as the head knows it: all events below `committed` are durable there."""

    generation: GenerationId
    committed: Position = 0
    #: Its finish is durable too; the node keeps nothing of it.
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """A session that the head has placed on the node: its epoch, content and generations."""

    session: SessionId
    epoch: Epoch
    tokens: U32
    digest: Annotated[bytes, MaxBytes(16)]
    generations: Annotated[tuple[GenerationView, ...], MaxItems(16)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendView:
    """A generation that the node has; what follows `first_seq` comes right after."""

    generation: GenerationId
    first_seq: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldView:
    """A session that the node holds under the head's epoch, not fenced."""

    session: SessionId
    epoch: Epoch
    tokens: U32
    digest: Annotated[bytes, MaxBytes(16)]
    generations: Annotated[tuple[ResendView, ...], MaxItems(16)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """A file by its SHA-256, with its length in bytes."""

    sha256: Annotated[bytes, MaxBytes(32)]
    length: Position
