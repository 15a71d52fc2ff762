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
#: The answer of content that an answer of another session made.
FORKED = -1


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
    #: A turn of a made session: its prompt is so much of the session's context, and `prompt` empty.
    context_tokens: int = 0


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
    #: Milliseconds of the answer's wall budget that were used by then.
    used_ms: int = 0
    #: It computes again what an earlier one had computed.
    replays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAccount:
    """What failures left of an answer so far; replaces what was kept before.

    `suspicion` is encoded by head/suspects.py; empty when it is suspected of nothing.
    """

    answer: int
    cached_tokens: int = 0
    replayed_tokens: int = 0
    suspicion: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkSent:
    """The node has shown that it runs the answer's generation; its answer is `sent`."""

    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTokens:
    """Tokens `offset`.. of an answer, as one batch of a generation, made by steps.

    `logprobs` has a record for each, as in `TokenRun`, when they were asked for.
    """

    answer: int
    generation: GenerationId
    offset: int
    ids: PackedIds
    logprobs: bytes = b""
    #: As in `PutGeneration`.
    used_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PutFinish:
    """The end of an answer: `finish` (stop, length, cancelled, expired, error) and its figures.

    `error` is the encoded error body for finish `error`, else empty; `stop` the stop string that
    the text was cut at.
    """

    answer: int
    finish: str
    error: bytes
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finished_wall_s: float
    stop: str = ""
    replayed_tokens: int = 0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSession:
    """A session that a client made, to be used for several turns."""

    session: SessionId
    owner: str
    model: ModelName
    qos: int
    created_wall_s: float
    #: The session that its first tokens were taken from.
    parent: SessionId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PutContent:
    """Tokens `first`.. of a made session's context; `answer` is 0 for what was appended.

    What an answer of the session's parent made has `FORKED`.
    """

    session: SessionId
    first: int
    ids: PackedIds
    answer: int = 0
    #: Of the tokenizer that the tokens are of; 0 for not known.
    tokenizer_digest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CutContent:
    """Tokens `first`.. of a made session's context are taken back; content begins there."""

    session: SessionId
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutParked:
    """A made session is parked, or resumed; `file_on` names the node that may have its file."""

    session: SessionId
    parked: bool
    file_on: NodeIdentity = NodeIdentity("")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSession:
    """A made session takes no more turns; it stays readable until it is purged."""

    session: SessionId
    ended_wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeSessions:
    """Forget these made sessions with their contexts."""

    sessions: tuple[SessionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PutNodeKey:
    """A node's static key and whether it may link: `pending`, `enrolled` or `revoked`."""

    public: bytes
    identity: NodeIdentity
    state: str
    host: str
    changed_wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetNodeKey:
    """Forget a node's static key."""

    public: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSetting:
    """A decision of an operator that outlives the process, such as the way of enrolment."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseBoot:
    """A node has seen higher epochs than this store: go on above them."""

    boot: int


Row = (
    PutAnswer
    | PutGeneration
    | PutAccount
    | MarkSent
    | PutTokens
    | PutFinish
    | PurgeAnswers
    | PutPeer
    | PutSession
    | PutContent
    | CutContent
    | PutParked
    | EndSession
    | PurgeSessions
    | PutNodeKey
    | ForgetNodeKey
    | PutSetting
    | RaiseBoot
)


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
    context_tokens: int = 0
    #: Of the latest generation: epoch, worker, numerics, and the answer's offset it began at.
    epoch: Epoch = Epoch(0)
    worker: int = 0
    first_offset: int = 0
    numerics: str = ""
    logprobs: bytes = b""
    stop: str = ""
    replayed_tokens: int = 0
    suspicion: bytes = b""
    used_ms: int = 0
    replays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A made session as read back at start; `contents` in order, from token 0 without a gap."""

    session: SessionId
    owner: str
    model: ModelName
    qos: int
    created_wall_s: float
    ended_wall_s: float
    contents: tuple[PutContent, ...]
    parent: SessionId | None = None
    parked: bool = False
    file_on: NodeIdentity = NodeIdentity("")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """All that a starting head knows. `boot` is this start's own, already committed."""

    boot: int
    head_id: str
    answers: tuple[StoredAnswer, ...]
    peers: tuple[PutPeer, ...] = ()
    sessions: tuple[StoredSession, ...] = ()
    node_keys: tuple[PutNodeKey, ...] = ()
    settings: tuple[PutSetting, ...] = ()
