"""Messages between an agent and its worker processes, over PUSH/PULL pipes.

The agent sends `Submit`, `Cancel`, `Pause`, `Resume`, `Ping`, `Stop`; the worker answers `Ready`
once, then `Accepted` or `Rejected` for each submit, `Output` for tokens, `Pong` when asked and as
it works, or `Failed` before it ends by itself. The agent keeps a submit until it is accepted.
`Park` is answered by `Parked` and `Restore` by `Restored`, in their order; `Forget` by nothing.
`Embed` is answered by `Embedded` or `EmbedFailed`, those that are done first before the others.
`Transcribe` is answered by a `TranscribedWindow` for each window of the audio, then `Transcribed`,
or by `TranscribeFailed` at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.codec import Codec
from bus.fields import MaxBytes, MaxItems, OneOf, Range
from bus.ids import GenerationId, NumericsId, PackedIds, SessionId, WorkerIncarnation
from bus.messages.media import MAX_MEDIA, MediaRef
from bus.messages.parts import U8, U32, Finish, Name, Segment, StageStatus
from bus.messages.sampling import SamplingParams

Path = Annotated[str, MaxBytes(4096)]
Session = Annotated[SessionId, MaxBytes(64)]
Salt = Annotated[bytes, MaxBytes(32)]

WORKER = Codec("worker", max_bytes=64 * 1024 * 1024)
#: Texts of one `Embed`, and bytes of a vector; so the answer fits a message.
MAX_EMBED_INPUTS = 1024
MAX_VECTOR_BYTES = 32 * 1024
#: Of one window, which has 224 tokens at most.
MAX_WINDOW_SEGMENTS = 256
#: The nonce of a Pong that answers no Ping.
UNASKED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """Counters since the worker's start; busy times count only time inside that kind of work."""

    steps: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    decode_busy_s: Annotated[float, Range(0.0, 1e12)] = 0.0
    prefill_busy_s: Annotated[float, Range(0.0, 1e12)] = 0.0
    lanes_used: U32 = 0
    queued: U32 = 0
    kv_live_tokens: int = 0
    phase: Name = "idle"
    #: Prompt tokens that were not computed, since their keys and values were found.
    cached_tokens: int = 0
    #: Times that a lane was taken from a generation for one of a better class.
    preemptions: int = 0
    #: Host memory that preempted lanes and cached prefixes take.
    kv_host_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRun:
    """Tokens of a generation in a row; `first_index` counts from the generation's own start.

    `logprobs` and `cached` as in `TokenRun`.
    """

    generation: GenerationId
    first_index: int
    ids: PackedIds = PackedIds(b"")
    finish: Finish | None = None
    logprobs: bytes = b""
    cached: U32 = 0


# --- agent to worker --------------------------------------------------------------------------


@WORKER.message(tag=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Generate after `context` (packed ids; `segments` cover it in order, none = one chunk).

    `prompt_tokens` and `generated_tokens` as in `GenerateReq`. `wall_ms` 0 is no limit.
    """

    generation: GenerationId
    context: PackedIds
    sampling: SamplingParams
    max_new_tokens: U32
    prompt_tokens: U32
    generated_tokens: U32 = 0
    wall_ms: int = 0
    qos: U8 = 0
    segments: Annotated[tuple[Segment, ...], MaxItems(65536)] = ()
    exact: bool = False
    #: Paths of the files that the request names, in its order.
    files: Annotated[tuple[Path, ...], MaxItems(64)] = ()
    #: Prefixes are shared only between requests of one salt.
    salt: Salt = b""
    #: Which tokens of the prompt stand for which of `files`.
    media: Annotated[tuple[MediaRef, ...], MaxItems(MAX_MEDIA)] = ()


@WORKER.message(tag=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End a generation; its `Output` with finish `cancelled` follows. Unknown ones are ignored."""

    generation: GenerationId


@WORKER.message(tag=3)
@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Make no more tokens of this generation until `Resume`; its lane keeps its KV."""

    generation: GenerationId


@WORKER.message(tag=4)
@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    generation: GenerationId


@WORKER.message(tag=5)
@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    nonce: int


@WORKER.message(tag=6)
@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Exit now; running generations end without a word (the agent knows them)."""


@WORKER.message(tag=8)
@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Write what is saved of a session's tokens to its file; a generation of it has ended before.

    `salt` is that of its submits.
    """

    session: Session
    context: PackedIds
    salt: Salt = b""


@WORKER.message(tag=9)
@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Read a session's file, so that its next submit finds its tokens computed.

    `context` and `segments` as that submit will have them, as far as they are known.
    """

    session: Session
    context: PackedIds
    segments: Annotated[tuple[Segment, ...], MaxItems(65536)] = ()
    salt: Salt = b""


@WORKER.message(tag=10)
@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Remove a session's file, if there is one."""

    session: Session


@WORKER.message(tag=11)
@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """Make a vector of each input; `Cancel` with the job's number ends it without an answer.

    `inputs` are the ids of a text each, with what the tokenizer puts around it. `pooling` empty and
    `normalize` None are as the model was trained.
    """

    job: GenerationId
    inputs: Annotated[tuple[PackedIds, ...], MaxItems(MAX_EMBED_INPUTS)]
    pooling: Annotated[str, OneOf(frozenset({"", "mean", "cls"}))] = ""
    normalize: bool | None = None


@WORKER.message(tag=12)
@dataclass(frozen=True, slots=True, kw_only=True)
class Transcribe:
    """Write what is said in an audio file; `Cancel` with the job's number ends it.

    `language` is a code such as `en`; empty is the model's own, or the one that it hears.
    `from_s` is where to begin, which a `next_s` of the same file gave.
    """

    job: GenerationId
    file: Path
    language: Name = ""
    from_s: Annotated[float, Range(0.0, 1e9)] = 0.0


# --- worker to agent --------------------------------------------------------------------------


@WORKER.message(tag=32)
@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model is loaded and its self-test passed."""

    worker: WorkerIncarnation
    window_tokens: U32
    lanes: U32
    kv_total_tokens: int
    numerics: NumericsId
    tokenizer_digest: int
    device: Annotated[str, MaxBytes(64)]
    load_s: float
    #: As in `ModelStatus`.
    kind: Name = ""
    text_digest: int = 0
    weights_digest: int = 0
    #: Of a stage, which takes no generation before its chain is open (worker_stages.py).
    stage: StageStatus | None = None


@WORKER.message(tag=33)
@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    generation: GenerationId


@WORKER.message(tag=34)
@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The submit can not run; `code` is one of bus/errors.py."""

    generation: GenerationId
    code: Name
    message: Annotated[str, MaxBytes(2048)]
    param: Name = ""
    length: int = 0
    max: int = 0


@WORKER.message(tag=35)
@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Tokens of all generations since the last flush, with the counters of now.

    The worker flushes a generation's first token at once, then at 16 tokens of one generation or
    after max(25 ms, 2 steps), and a finish at once; a flush carries every generation's tokens.
    """

    runs: Annotated[tuple[OutputRun, ...], MaxItems(4096)]
    stats: WorkerStats


@WORKER.message(tag=36)
@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The counters of now: the answer to `Ping`, and `UNASKED` about each second of work.

    The answer also has the digests of prefixes that the worker holds, newest first.
    """

    nonce: int
    stats: WorkerStats
    prefixes: Annotated[tuple[Annotated[bytes, MaxBytes(32)], ...], MaxItems(4096)] = ()


@WORKER.message(tag=37)
@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Why the worker is about to exit (a model folder that lacks a file, no GPU)."""

    code: Name
    message: Annotated[str, MaxBytes(2048)]


@WORKER.message(tag=39)
@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """The session's first `tokens` tokens are in its file, durable.

    When there are none, `code` and `message` say why.
    """

    session: Session
    tokens: U32 = 0
    file_bytes: int = 0
    code: Name = ""
    message: Annotated[str, MaxBytes(2048)] = ""


@WORKER.message(tag=40)
@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The session's first `tokens` tokens need not be computed again.

    The first `exact_tokens` are bit for bit what this worker would compute; `problem` says why not
    all of them are, or why there are none.
    """

    session: Session
    tokens: U32 = 0
    exact_tokens: U32 = 0
    problem: Annotated[str, MaxBytes(2048)] = ""


@WORKER.message(tag=41)
@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """The vectors of a job's inputs, in their order: float32 little-endian, all of one length.

    `tokens` are those of all inputs.
    """

    job: GenerationId
    vectors: Annotated[
        tuple[Annotated[bytes, MaxBytes(MAX_VECTOR_BYTES)], ...], MaxItems(MAX_EMBED_INPUTS)
    ]
    tokens: int


@WORKER.message(tag=42)
@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedFailed:
    """There are no vectors of this job; `code` is one of bus/errors.py."""

    job: GenerationId
    code: Name
    message: Annotated[str, MaxBytes(2048)]
    param: Name = ""
    length: int = 0
    max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenSegment:
    """What is said between two times of the audio, in seconds from its beginning."""

    start_s: Annotated[float, Range(0.0, 1e9)]
    end_s: Annotated[float, Range(0.0, 1e9)]
    text: Annotated[str, MaxBytes(16 * 1024)]


@WORKER.message(tag=43)
@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribedWindow:
    """What is said from where the last window ended up to `next_s`; may be nothing."""

    job: GenerationId
    segments: Annotated[tuple[SpokenSegment, ...], MaxItems(MAX_WINDOW_SEGMENTS)]
    next_s: Annotated[float, Range(0.0, 1e9)]
    language: Name


@WORKER.message(tag=44)
@dataclass(frozen=True, slots=True, kw_only=True)
class Transcribed:
    """All windows of a job were told; `duration_s` is the audio's."""

    job: GenerationId
    language: Name
    duration_s: Annotated[float, Range(0.0, 1e9)]


@WORKER.message(tag=45)
@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeFailed:
    """Nothing more comes of this job; `code` is one of bus/errors.py."""

    job: GenerationId
    code: Name
    message: Annotated[str, MaxBytes(2048)]
    param: Name = ""
    length: int = 0
    max: int = 0


#: What jobs ask of workers, what answers them and what of that is the last answer; each carries the
#: `job` that it is about (bus/agent_jobs.py).
JOB_REQUESTS = (Embed, Transcribe)
JOB_ENDS = (Embedded, EmbedFailed, Transcribed, TranscribeFailed)
JOB_REPLIES = (*JOB_ENDS, TranscribedWindow)
