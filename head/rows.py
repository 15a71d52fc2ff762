"""What the head's core asks the store to keep: one small frozen dataclass per change.

The core returns them inside a `Persist`; the store applies all rows of a `Persist` in one
transaction. Reading back at start gives `StoredState`.

An *answer* is one client request's output; a *generation* one run of the model for it. The answer
keeps the prompt and all that is needed to run it again; batches keep its tokens as they came.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.ids import Epoch, GenerationId, ModelName, NodeIdentity, PackedIds, SessionId

#: Answer states, in the order that they are passed through.
ADMITTED, PLACED, SENT, FINISHED = "admitted", "placed", "sent", "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAnswer:
    """A request that was accepted. `options` is the encoded SamplingParams and budgets.

    `owner` is the client key it belongs to, `key` its idempotency key (unique per owner).
    """

    answer: int
    session: SessionId
    owner: str
    key: str | None
    model: ModelName
    prompt: PackedIds
    options: bytes
    on_disconnect: str
    created_wall_s: float
    state: str = ADMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class PutGeneration:
    """A generation placed on a node; its answer's state becomes `placed`."""

    generation: GenerationId
    answer: int
    session: SessionId
    epoch: Epoch
    node: NodeIdentity
    worker: int
    numerics: str
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkSent:
    """The node has shown that it runs the answer's generation; its answer is `sent`."""

    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTokens:
    """Tokens `offset`.. of an answer, as one batch of a generation, made by steps."""

    answer: int
    generation: GenerationId
    offset: int
    ids: PackedIds


@dataclass(frozen=True, slots=True, kw_only=True)
class PutFinish:
    """The end of an answer: `finish` (stop, length, cancelled, expired, error) and its figures.

    `error` is the encoded error body for finish `error`, else empty.
    """

    answer: int
    finish: str
    error: bytes
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finished_wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeAnswers:
    """Forget these answers with all their generations and tokens."""

    answers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PutPeer:
    """A link came up: the newest Hello seen of a static key, so that an older one is refused."""

    public: bytes
    identity: NodeIdentity
    incarnation: int
    hello_counter: int


Row = PutAnswer | PutGeneration | MarkSent | PutTokens | PutFinish | PurgeAnswers | PutPeer


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """An answer as read back at start, with all its tokens joined."""

    answer: int
    session: SessionId
    owner: str
    key: str | None
    model: ModelName
    prompt: PackedIds
    options: bytes
    on_disconnect: str
    created_wall_s: float
    state: str
    tokens: PackedIds
    finish: str
    error: bytes
    prompt_tokens: int
    cached_tokens: int
    finished_wall_s: float
    generation: GenerationId | None
    node: NodeIdentity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """All that a starting head knows. `boot` is this start's own, already committed."""

    boot: int
    head_id: str
    answers: tuple[StoredAnswer, ...]
    peers: tuple[PutPeer, ...] = ()
