"""The client API's bodies: msgpack maps with string keys (docs/api.md).

A request is `[b"SF1", body, blob...]` with `op`, `id` and the operation's own keys; replies have
the same shape with `id` and `kind` (event, end, error). Unknown keys are passed over; a wrong value
of a known key is an error that names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgpack

from bus.api_maps import from_map
from bus.errors import DecodeError, Invalid, SuperfluidError
from bus.fields import MaxBytes, MaxItems, OneOf, Range
from bus.ids import ModelName, RequestId, SessionId
from bus.messages.media import MAX_MEDIA, MediaRef
from bus.messages.parts import U32, Fraction, Position
from bus.messages.sampling import (
    MAX_BIASES,
    MAX_STOP_IDS,
    MAX_TOP_LOGPROBS,
    Penalty,
    RepetitionPenalty,
)
from bus.messages.tool_calls import ToolCall, ToolCalls
from bus.unpacking import unpack

MARK = b"SF1"
MAX_BODY_BYTES = 8 * 1024 * 1024
#: A schema nests deeper than any message.
MAX_BODY_DEPTH = 64
#: Mark, body and blobs of one request.
MAX_FRAMES = 34
MAX_PROMPT_TOKENS = 1 << 20
DEFAULT_CREDIT = 256
MAX_CREDIT = 4096
MAX_ID_BYTES = 64
_ID_KEY = msgpack.packb("id")
#: Ids of a session's context in one reply.
MAX_IDS_AT_ONCE = 65_536
#: The one blob frame of a `put_blob`.
MAX_BLOB_PART_BYTES = 256 * 1024
MAX_KEY_BYTES = 256
#: Files that one request may name.
MAX_REQUEST_BLOBS = 64

#: QoS classes by name; lower goes first.
QOS_CLASSES = {"interactive": 0, "completion": 1, "agent": 2, "background": 3}
QOS_NAMES = {number: name for name, number in QOS_CLASSES.items()}

Qos = Annotated[str, OneOf(frozenset(QOS_CLASSES))]
Text = Annotated[str, MaxBytes(MAX_BODY_BYTES)]
Ids = Annotated[tuple[U32, ...], MaxItems(MAX_PROMPT_TOKENS)]
RequestIdField = Annotated[RequestId, MaxBytes(MAX_ID_BYTES)]
Key = Annotated[str, MaxBytes(MAX_KEY_BYTES)]
SessionIdField = Annotated[SessionId, MaxBytes(64)]
Sha256 = Annotated[bytes, MaxBytes(32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every request has. `credit` is how many events may come before a `more`."""

    op: Annotated[str, MaxBytes(64)]
    id: RequestIdField
    credit: Annotated[int, Range(1, MAX_CREDIT)] = DEFAULT_CREDIT


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """What all requests for answers share. Times in ms, 0 is no limit; seed None draws one."""

    model: ModelName
    max_new: U32 = 256
    max_wall_ms: U32 = 0
    temperature: Annotated[float, Range(0.0, 100.0)] = 1.0
    top_k: U32 = 0
    top_p: Fraction = 1.0
    min_p: Fraction = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: U32 = 0
    repetition_penalty: RepetitionPenalty = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    #: A text that ends the answer, or a list of them.
    stop: Any = None
    stop_ids: Annotated[tuple[U32, ...], MaxItems(MAX_STOP_IDS)] = ()
    #: By token id, a whole number or its decimal text, what is added to its logit.
    logit_bias: Annotated[dict[str, Any], MaxItems(MAX_BIASES)] | None = None
    #: How many tokens beside the chosen one, or true for none.
    logprobs: Any = None
    #: One kind of constraint, and its source.
    constraint: dict[str, Any] | None = None
    #: Short for a constraint of kind `json_schema`.
    schema: Any = None
    qos: Qos = "interactive"
    key: Key | None = None
    exact: bool = False
    on_disconnect: Annotated[str, OneOf(frozenset({"cancel", "keep"}))] | None = None
    #: Make no more tokens while the reader is some hundred behind and grants no credit.
    pause_when_slow: bool = False
    #: SHA-256 of files that were put.
    blobs: Annotated[tuple[Sha256, ...], MaxItems(MAX_REQUEST_BLOBS)] = ()


#: Keys that only chats have; refused elsewhere, never passed over.
OF_CHATS = ("tools", "tool_choice", "channels")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest(GenerationOptions):
    """One of `prompt` (text) and `tokens` (ids)."""

    prompt: Text | None = None
    tokens: Ids | None = None
    #: Of `tokens`, those that stand for one of `blobs`.
    media: Annotated[tuple[MediaRef, ...], MaxItems(MAX_MEDIA)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCreateRequest:
    """A session for several turns; `qos` is that of its turns."""

    model: ModelName
    qos: Qos = "interactive"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """What `session.finish` takes, and every other operation on a session beside its own keys."""

    session: SessionIdField


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAppendRequest(SessionRequest):
    """One of `text` and `tokens` (ids), to be added to the context."""

    text: Text | None = None
    tokens: Ids | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionGetRequest(SessionRequest):
    """`limit` above 0 asks for so many ids of the context from `offset` on."""

    offset: U32 = 0
    limit: Annotated[int, Range(0, MAX_IDS_AT_ONCE)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionGenerateRequest(GenerationOptions):
    """A turn on the session's context. The model is the session's."""

    session: SessionIdField
    keep_output: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutRequest:
    """`cancel` and `more`: about an open request of this connection."""

    about: RequestIdField
    credit: Annotated[int, Range(1, MAX_CREDIT)] = DEFAULT_CREDIT


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest:
    """Continue an answer from token `offset`; exactly one of the three names it."""

    about: RequestIdField | None = None
    key: Key | None = None
    session: SessionId | None = None
    offset: U32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    model: ModelName
    text: Text
    add_special: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest:
    model: ModelName
    tokens: Ids
    skip_special: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBlobRequest:
    """A part of a file: the bytes at `offset`, in the one frame after the body."""

    sha256: Sha256
    length: Position
    offset: Position = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HasBlobRequest:
    sha256: Sha256


# --- what the head answers --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopToken:
    """A token and its log-probability.

    `raw` has its bytes where `text` does not tell them: a token may be a part of a character.
    """

    token: U32
    text: Annotated[str, MaxBytes(16 * 1024)]
    logprob: float
    raw: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob(TopToken):
    """The log-probability of one token of an answer, and of the likeliest at its place.

    `top` has as many as were asked for, the likeliest first, and the token itself where it is
    none of them; nothing when none were asked for.
    """

    top: Annotated[tuple[TopToken, ...], MaxItems(1 + MAX_TOP_LOGPROBS)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """Tokens at `offset` of the answer, and the text that they complete."""

    offset: int
    tokens: Ids
    text: Text
    index: int = 0
    type: str = "token"
    #: One for each token, when they were asked for.
    logprobs: tuple[TokenLogprob, ...] | None = None
    #: Of chats: the reasoning, and the calls, that these tokens complete.
    reasoning: Text = ""
    tool_calls: ToolCalls = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedEvent:
    position: int
    type: str = "queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEvent:
    """`session` is what `attach` takes from any other connection."""

    node: str
    session: str
    type: str = "placed"


def moved_event(source: str, to: str, offset: int, *, exact: bool, reason: str) -> dict[str, Any]:
    """A stream goes on elsewhere: from node, to node, at token `offset` of the answer, and why.

    Args:
        exact: the new node continues bit by bit as the old one would have.
    """
    # A map, since `from` can not be a dataclass field.
    return {
        "type": "moved",
        "from": source,
        "to": to,
        "offset": offset,
        "exact": exact,
        "reason": reason,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerUsage:
    """Tokens: of the prompt, of it found in a cache, made, and made again after a move."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    replayed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Milliseconds from the head's acceptance; the rate counts from the first token on."""

    queued_ms: float = 0.0
    first_token_ms: float = 0.0
    total_ms: float = 0.0
    tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBody:
    """The end of an answer. `finish`: stop, tool_calls, length, cancelled or expired."""

    finish: str
    usage: AnswerUsage
    timing: Timing
    node: str
    session: str
    offset: int
    """Number of tokens of the whole answer."""
    text: str = ""
    """Text that only the end completes (a tail that was held back)."""
    stop: str | None = None
    """The stop string that the text was cut at."""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    """Of chats: what only the end completes, as `text`."""


# --- frames -----------------------------------------------------------------------------------


def encode_body(body: dict[str, Any]) -> bytes:
    """A body as it travels."""
    packed: bytes = msgpack.packb(body)
    return packed


def decode_body(frames: list[bytes]) -> dict[str, Any]:
    """The body of `[b"SF1", body, blob...]`.

    Raises:
        DecodeError: not such frames, or no map with text keys.
    """
    if len(frames) < 2 or frames[0] != MARK:
        raise DecodeError('expected frames [b"SF1", body, ...]; see docs/api.md')
    body = unpack(frames[1], max_bytes=MAX_BODY_BYTES, max_depth=MAX_BODY_DEPTH, number_keys=True)
    if type(body) is not dict or not all(type(key) is str for key in body):
        raise DecodeError("the body should be a msgpack map with text keys")
    return body


def readable_id(body: dict[str, Any]) -> RequestId | None:
    """The id that a reply can echo, whatever else is wrong with the body."""
    return _checked_id(body.get("id"))


def id_of_unreadable(frames: list[bytes]) -> RequestId | None:
    """The same of a body that `decode_body` refuses: nothing but the id is made of it."""
    if len(frames) < 2 or len(frames[1]) > MAX_BODY_BYTES:
        return None
    reader = msgpack.Unpacker(raw=False, max_ext_len=0, max_buffer_size=MAX_BODY_BYTES)
    reader.feed(frames[1])
    try:
        for _ in range(reader.read_map_header()):
            start = reader.tell()
            reader.skip()
            if frames[1][start : reader.tell()] == _ID_KEY:
                return _checked_id(_short_value(reader, frames[1]))
            reader.skip()
    except Exception:  # noqa: BLE001 - msgpack raises many kinds for bad input
        return None
    return None


def _short_value(reader: msgpack.Unpacker, data: bytes) -> object:
    start = reader.tell()
    reader.skip()
    value = data[start : reader.tell()]
    return msgpack.unpackb(value) if len(value) <= MAX_ID_BYTES + 8 else None


def _checked_id(found: object) -> RequestId | None:
    if type(found) is bytes and 1 <= len(found) <= MAX_ID_BYTES:
        return RequestId(found)
    return None


def read_envelope(frames: list[bytes], body: dict[str, Any]) -> Envelope:
    """The common keys of a request.

    Raises:
        Invalid: `op` or `id` is missing or wrong, or there are too many frames.
    """
    if len(frames) > MAX_FRAMES:
        raise Invalid(f"a request of more than {MAX_FRAMES} frames; send fewer blobs")
    envelope = from_map(Envelope, body)
    if not envelope.id:
        raise Invalid("id is empty; choose 1 to 64 bytes", param="id")
    return envelope


def error_body(request: bytes | None, error: SuperfluidError) -> dict[str, Any]:
    """An error reply."""
    return {"id": request, "kind": "error", "error": error.to_dict()}
