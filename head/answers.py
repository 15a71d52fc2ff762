"""Answers: one client request's output, and the subscriptions that read it from a cursor.

Tokens are the truth; text is made from them, from the first token, each time it is needed. A
subscription is a reader: an open request or an `attach`. It gets the tokens from its offset on,
each once and in order, as far as its credit goes; what it is not yet sent stays in the answer.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Any

from bus.api_maps import to_map
from bus.errors import NoNode, QueueFull, RateLimited, SuperfluidError
from bus.ids import ModelName, NodeIdentity, PackedIds, RequestId, SessionId
from bus.messages.api import MAX_CREDIT, AnswerUsage, EndBody, Timing, error_body
from bus.messages.media import MediaRef
from bus.messages.parts import BlobRef
from bus.messages.sampling import SamplingParams
from bus.text.stops import AnswerText
from head.answer_pieces import AnswerPieces, Channels, pieces_map
from head.answer_readers import answer_reader
from head.effects import ClientKey, Reply
from head.logprobs import token_logprobs
from head.rows import PutAccount
from head.suspects import Suspicion
from head.texts import TextDesk

#: Answer stages. `preparing` has its text at a text process; `ended` has a finish.
PREPARING, QUEUED, RUNNING, ENDED = "preparing", "queued", "running", "ended"

#: What one token event carries at most: tokens, or with log-probabilities all that these name.
EVENT_ENTRIES = 4096

#: A moment of the time before the head's start, of which only is known that it was.
NOT_KNOWN_S = -1.0

#: Refusals of what may well be taken a moment later.
PASSING = (NoNode, QueueFull, RateLimited)

#: From the worker's reasons to the API's; `refused` and `error` become error replies.
FINISH_NAMES = {
    "eos": "stop",
    "stop": "stop",
    "length": "length",
    "cancelled": "cancelled",
    "expired": "expired",
}


@dataclass(slots=True, kw_only=True)
class Answer:
    """One client request's output, from acceptance to the end of its retention.

    Invariants: `tokens` only grows, and only with tokens whose rows are in the same round;
    `logprobs` has a record for each of them when they were asked for; `finish` is set once.
    """

    id: int
    session: SessionId
    owner: str
    key: str | None
    model: ModelName
    sampling: SamplingParams
    max_new: int
    wall_ms: int
    qos: int
    exact: bool
    keep: bool
    accepted_s: float
    #: When its wall budget began to count: later than `accepted_s` by as long as no head was there.
    budget_from_s: float = math.nan
    #: Empty for a turn of a made session, which begins with its session's context.
    prompt: PackedIds = PackedIds(b"")
    is_turn: bool = False
    #: Its node makes no more tokens while all who read it are behind.
    pause_when_slow: bool = False
    #: Of a turn: its tokens join the session's context when it ends.
    keep_output: bool = True
    #: Of a turn that brought messages: where they begin in the context.
    joined_at: int | None = None
    #: Files that it names; the head keeps them until it has ended.
    blobs: tuple[BlobRef, ...] = ()
    #: Tokens of its prompt that stand for one of them.
    media: tuple[MediaRef, ...] = ()
    #: Of the tokenizer that its ids are of; 0 while it is not known, and of an older version.
    tokenizer_digest: int = 0
    #: Of what was asked, for a repeated key; empty when an older version took the request.
    request_digest: bytes = b""
    stage: str = PREPARING
    #: Its request is in the store, or in a row of this round.
    stored: bool = False
    tokens: array[int] = field(default_factory=lambda: array("I"))
    logprobs: bytearray = field(default_factory=bytearray)
    #: Of an answer to a chat that is read in channels: how.
    channels: Channels | None = None
    #: Looks for stop strings, or calls; made when they are first looked for.
    reader: AnswerText | AnswerPieces | None = None
    #: The stop string that its text was cut at.
    stop: str = ""
    #: Why it ended, by the API's name; empty until then.
    finish: str = ""
    error: SuperfluidError | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    node: NodeIdentity = NodeIdentity("")
    #: 0 is not yet.
    placed_s: float = 0.0
    first_token_s: float = 0.0
    ended_s: float = 0.0
    #: Its last failure, if no token came since: when, why, where.
    failed_s: float | None = None
    failure: str = ""
    moved_from: NodeIdentity = NodeIdentity("")
    #: What computed the last tokens; another one goes on equally, but not bit by bit.
    numerics: str = ""
    #: Tokens that later nodes had to compute again, prompt and answer, and have.
    replayed_tokens: int = 0
    #: Whether the next token is the first after tokens had to be computed again.
    is_replaying: bool = False
    suspicion: Suspicion = field(default_factory=Suspicion)
    #: What was last kept of the above (head/accounts.py).
    account: PutAccount | None = None
    #: Nodes that can not take it: the incarnation that said so, and its words.
    tried: dict[NodeIdentity, tuple[int, str]] = field(default_factory=dict)
    #: Nodes that could not take it just now; they are asked again after a moment.
    resting: dict[NodeIdentity, str] = field(default_factory=dict)
    rests: dict[NodeIdentity, int] = field(default_factory=dict)
    #: Its job at a text process, while it is being prepared.
    text_job: int | None = None
    #: The timer of its wall budget, while it waits or runs.
    budget_timer: int | None = None
    #: Since its node has waited for its readers; ends the wait.
    hold_timer: int | None = None
    subscriptions: list[Subscription] = field(default_factory=list)
    #: When a reader last went away, or the head was restarted.
    unread_s: float = 0.0

    def __post_init__(self) -> None:
        if math.isnan(self.budget_from_s):
            self.budget_from_s = self.accepted_s

    @property
    def ended(self) -> bool:
        return self.stage == ENDED

    @property
    def is_cut(self) -> bool:
        """Whether it ended before its model was done."""
        return self.finish not in ("stop", "tool_calls")

    @property
    def is_read(self) -> bool:
        """Whether the head itself looks into it, for what ends it."""
        channels = self.channels
        return bool(self.sampling.stop if channels is None else channels.stops or channels.tools)

    @property
    def may_be_tried_again(self) -> bool:
        """Whether it was refused for a reason that passes before any node had it."""
        return isinstance(self.error, PASSING) and not self.node

    @property
    def remaining(self) -> int:
        """Tokens that it may still have."""
        return max(self.max_new - len(self.tokens), 0)

    @property
    def context_tokens(self) -> int:
        """Tokens of the context that its next one follows."""
        return self.prompt_tokens + len(self.tokens)

    @property
    def is_held_back(self) -> bool:
        """Whether its node is to wait for its readers."""
        readers = self.subscriptions
        return self.pause_when_slow and bool(readers) and all(r.is_behind for r in readers)

    @property
    def unread(self) -> int:
        """Tokens that none of the readers has that its node is to wait for; 0 when it is not to."""
        if not self.is_held_back:
            return 0
        return len(self.tokens) - max(reader.offset for reader in self.subscriptions)

    def budget_left_ms(self, now: float) -> int:
        """What is unused of the wall budget, at least 1; 0 when it has none."""
        if not self.wall_ms:
            return 0
        return max(round(self.wall_ms - (now - self.budget_from_s) * 1000), 1)

    def budget_used_ms(self, now: float) -> int:
        """What is used of the wall budget; 0 when it has none."""
        return round((now - self.budget_from_s) * 1000) if self.wall_ms else 0

    @property
    def budget_ends_s(self) -> float:
        """When the wall budget ends; inf when it has none."""
        return self.budget_from_s + self.wall_ms / 1000 if self.wall_ms else math.inf

    def progress(self, since_placement: int) -> None:
        """Tokens were committed: the failures before them are made good."""
        self.failed_s = None
        self.tried.clear()
        self.rests.clear()
        self.suspicion.progress(since_placement)

    def end_body(self, text: str) -> EndBody:
        """What the `end` reply says."""
        after_first = self.ended_s - self.first_token_s
        known = self.first_token_s > 0 and after_first > 0
        rate = (len(self.tokens) - 1) / after_first if known else 0.0
        return EndBody(
            finish=self.finish,
            usage=AnswerUsage(
                prompt=self.prompt_tokens,
                cached=self.cached_tokens,
                completion=len(self.tokens),
                replayed=self.replayed_tokens,
            ),
            timing=Timing(
                queued_ms=_ms(self.accepted_s, self.placed_s),
                first_token_ms=_ms(self.accepted_s, self.first_token_s),
                total_ms=_ms(self.accepted_s, self.ended_s),
                tokens_per_s=round(max(rate, 0.0), 3),
            ),
            node=self.node,
            session=self.session,
            offset=len(self.tokens),
            text=text,
            stop=self.stop or None,
        )


@dataclass(slots=True, kw_only=True)
class Subscription:
    """One reader of an answer. `offset` is the next token it gets; `credit` events may go."""

    client: ClientKey
    request: RequestId
    answer: Answer
    credit: int
    offset: int = 0
    closed: bool = False
    #: Its connection takes nothing now: all waits where it is kept anyway.
    stalled: bool = False
    text: AnswerText | AnswerPieces | None = None

    @property
    def is_behind(self) -> bool:
        """Whether there are tokens that it may not be sent."""
        return (self.credit <= 0 or self.stalled) and self.offset < len(self.answer.tokens)

    def grant(self, credit: int) -> None:
        self.credit = min(self.credit + credit, MAX_CREDIT)

    def event(self, event: object) -> Reply | None:
        """An event that is no token; left out when none may be sent (tokens never are).

        Args:
            event: a struct, or the map that it would be.
        """
        if self.credit <= 0 or self.closed or self.stalled:
            return None
        self.credit -= 1
        return self._reply("event", event if isinstance(event, dict) else to_map(event))

    def pump(self, texts: TextDesk) -> list[Reply]:
        """All that may go now: tokens from the cursor on, then the end.

        Raises:
            TokenizerUnavailable: text is to be made and the model's tokenizer is not known.
        """
        if self.closed or self.stalled:
            return []
        out = []
        tokens = self.answer.tokens
        while self.offset < len(tokens) and self.credit > 0:
            out.append(self._token_reply(texts))
        if self.answer.ended and self.offset == len(tokens):
            out.append(self._end(texts))
        return out

    def fail(self, error: SuperfluidError) -> Reply:
        """Close this reader with an error of its own; the answer goes on."""
        self.closed = True
        return Reply(client=self.client, body=error_body(self.request, error))

    def _token_reply(self, texts: TextDesk) -> Reply:
        answer, sampling = self.answer, self.answer.sampling
        end = self.offset + max(EVENT_ENTRIES // max(sampling.logprobs, 1), 1)
        fresh = answer.tokens[self.offset : end]
        found = self._reader(texts).push(fresh)
        # As `to_map` makes it of a `TokenEvent`, for a fifth of the time.
        event: dict[str, Any] = {
            "offset": self.offset,
            "tokens": fresh.tolist(),
            "text": found if isinstance(found, str) else found.text,
            "index": 0,
            "type": "token",
        }
        if not isinstance(found, str):
            event |= pieces_map(found)
        if size := sampling.record_bytes:
            records = bytes(answer.logprobs[size * self.offset : size * end])
            others = sampling.logprobs - 1
            event["logprobs"] = token_logprobs(
                fresh, records, others, texts.vocabulary(answer.model, answer.tokenizer_digest)
            )
        self.credit -= 1
        self.offset += len(fresh)
        return self._reply("event", event)

    def _end(self, texts: TextDesk) -> Reply:
        if self.answer.error is not None:
            return self.fail(self.answer.error)
        reader = self._reader(texts)
        more: dict[str, Any] = {}
        if isinstance(reader, AnswerText):
            tail = reader.finish()
        else:
            pieces = reader.finish(cut=self.answer.is_cut)
            tail, more = pieces.text, {**pieces_map(pieces), **self._found(reader)}
        self.closed = True
        return self._reply("end", to_map(self.answer.end_body(tail)) | more)

    def _found(self, reader: AnswerPieces) -> dict[str, Any]:
        """How the answer ended, where its last tokens came before its tokenizer was known."""
        finish = self.answer.finish
        if self.answer.stop or finish not in ("stop", "length"):
            return {}
        if reader.stop:
            return {"finish": "stop", "stop": reader.stop}
        return {"finish": "tool_calls"} if reader.calls and finish == "stop" else {}

    def _reader(self, texts: TextDesk) -> AnswerText | AnswerPieces:
        if self.text is None:
            self.text = answer_reader(self.answer, texts)
            self.text.push(self.answer.tokens[: self.offset])
        return self.text

    def _reply(self, kind: str, body: dict[str, Any]) -> Reply:
        return Reply(client=self.client, body={"id": self.request, "kind": kind, **body})


def _ms(start_s: float, end_s: float) -> float:
    """Milliseconds; 0 when the end is not known, or has not been."""
    return round(max(end_s - start_s, 0.0) * 1000, 3) if end_s > 0 else 0.0
