"""The client API's operations: from a request's body to answers, readers and reports.

Each operation is a method here and a row in `OPERATIONS`; it may raise any `SuperfluidError`, which
becomes the request's one error reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgpack

from bus.codec import from_map
from bus.errors import CursorAhead, Invalid, NotFound, SuperfluidError
from bus.ids import PackedIds, RequestId, SessionId, pack_ids, unpack_ids
from bus.messages.api import (
    NOT_YET,
    AboutRequest,
    AttachRequest,
    ChatRequest,
    DetokenizeRequest,
    Envelope,
    GenerateRequest,
    GenerationOptions,
    TokenizeRequest,
)
from bus.messages.link import SamplingParams
from bus.messages.text import Decode, Decoded, Described, Encode, Encoded, RenderChat
from head import reports
from head.answers import Answer, Subscription
from head.book import AnswerBook
from head.effects import ClientKey, Reply
from head.fleet import Fleet
from head.outbox import Outbox
from head.runs import Runs
from head.texts import MakeJob, TextDesk

#: Until clients have keys, whoever may open the API socket is one owner.
LOCAL_OWNER = "local"


class Core(Protocol):
    """What the operations need of the head's core."""

    outbox: Outbox
    texts: TextDesk
    book: AnswerBook
    fleet: Fleet
    runs: Runs

    def new_answer(
        self, owner: str, request: GenerationOptions, sampling: SamplingParams, now: float
    ) -> Answer: ...

    def fail_request(
        self, client: ClientKey, request: RequestId | None, error: SuperfluidError
    ) -> None: ...

    def status(self, now: float) -> dict[str, Any]: ...


class Api:
    """The operations, over the head's core. Owned by the core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def handle(
        self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float
    ) -> None:
        """Run one request; an error goes back as its reply.

        Raises:
            SuperfluidError: the request can not be served.
        """
        operation = OPERATIONS.get(envelope.op)
        if operation is None:
            raise Invalid(
                f"unknown operation {envelope.op!r}; this head serves: {', '.join(OPERATIONS)}",
                param="op",
            )
        if self._core.book.is_open(client, envelope.id):
            raise Invalid("id names an open request already; choose another", param="id")
        operation(self, client, envelope, body, now)

    # --- answers ------------------------------------------------------------------------------

    def generate(
        self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float
    ) -> None:
        request = from_map(GenerateRequest, _only_known(body))
        if (request.prompt is None) == (request.tokens is None):
            raise Invalid("give one of prompt (text) and tokens (ids)", param="prompt")
        if request.prompt == "" or request.tokens == ():
            raise Invalid("the prompt is empty; give at least one token of text", param="prompt")
        answer, is_new = self._open_answer(client, envelope, request, now)
        if not is_new:
            return
        if request.tokens is not None:
            ids = request.tokens
            self._core.texts.when_described(
                answer.model, lambda known, at: self._admit_ids(answer, known, ids, at), now
            )
            return
        text = request.prompt or ""
        self._encode(answer, lambda job, folder: Encode(job=job, folder=folder, text=text))

    def chat(self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float) -> None:
        request = from_map(ChatRequest, _only_known(body))
        if not request.messages:
            raise Invalid("messages is empty; give at least one message", param="messages")
        messages = msgpack.packb(list(request.messages))
        options = msgpack.packb(request.template or {})
        answer, is_new = self._open_answer(client, envelope, request, now)
        if is_new:
            self._encode(
                answer,
                lambda job, folder: RenderChat(
                    job=job, folder=folder, messages=messages, options=options
                ),
            )

    def attach(
        self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float
    ) -> None:
        request = from_map(AttachRequest, body)
        answer = self._find(client, request)
        have = len(answer.tokens)
        if request.offset > have:
            raise CursorAhead(
                f"offset {request.offset} is above the answer's {have} tokens; attach at {have}",
                param="offset",
                details={"offset": request.offset, "have": have},
            )
        self._subscribe_when_described(client, envelope, answer, request.offset, now)

    def cancel(
        self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float
    ) -> None:
        request = from_map(AboutRequest, body)
        answer = self._core.book.subscription(client, request.about).answer
        self._core.runs.cancel(answer, now)
        self._end(client, envelope, {})

    def more(self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float) -> None:
        request = from_map(AboutRequest, body)
        subscription = self._core.book.subscription(client, request.about)
        subscription.grant(request.credit)
        self._core.book.pump_one(subscription)
        self._end(client, envelope, {})

    # --- text ---------------------------------------------------------------------------------

    def tokenize(
        self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float
    ) -> None:
        request = from_map(TokenizeRequest, body)

        def job(number: int, folder: str) -> object:
            return Encode(
                job=number, folder=folder, text=request.text, add_special=request.add_special
            )

        def shape(reply: object) -> dict[str, Any]:
            ids = reply.ids if isinstance(reply, Encoded) else b""
            return {"tokens": list(unpack_ids(ids))}

        self._text_operation(client, envelope, request.model, job, shape)

    def detokenize(
        self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float
    ) -> None:
        request = from_map(DetokenizeRequest, body)
        ids = pack_ids(request.tokens)

        def job(number: int, folder: str) -> object:
            return Decode(job=number, folder=folder, ids=ids, skip_special=request.skip_special)

        def shape(reply: object) -> dict[str, Any]:
            return {"text": reply.text if isinstance(reply, Decoded) else ""}

        self._text_operation(client, envelope, request.model, job, shape)

    def _text_operation(
        self,
        client: ClientKey,
        envelope: Envelope,
        model: Any,
        job: MakeJob,
        shape: Callable[[object], dict[str, Any]],
    ) -> None:
        def then(reply: object, now: float) -> None:
            if isinstance(reply, SuperfluidError):
                self._core.fail_request(client, envelope.id, reply)
            else:
                self._end(client, envelope, shape(reply))

        self._core.texts.submit(model, job, then)

    # --- reports ------------------------------------------------------------------------------

    def hello(
        self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float
    ) -> None:
        self._end(client, envelope, reports.hello(sorted(OPERATIONS)))

    def ping(self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float) -> None:
        self._end(client, envelope, {})

    def status(
        self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float
    ) -> None:
        self._end(client, envelope, self._core.status(now))

    def nodes(
        self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float
    ) -> None:
        self._end(client, envelope, {"nodes": reports.nodes(self._core.fleet, now)})

    def models(
        self, client: ClientKey, envelope: Envelope, body: dict[str, Any], now: float
    ) -> None:
        listed = reports.models(
            self._core.fleet, self._core.texts, self._core.runs.waiting.counts()
        )
        self._end(client, envelope, {"models": listed})

    # --- parts --------------------------------------------------------------------------------

    def _open_answer(
        self, client: ClientKey, envelope: Envelope, request: GenerationOptions, now: float
    ) -> tuple[Answer, bool]:
        """The answer of a request and whether it is new; a repeated key attaches to its own."""
        if request.key is not None:
            known = self._core.book.by_key(LOCAL_OWNER, request.key)
            if known is not None:
                self._subscribe_when_described(client, envelope, known, 0, now)
                return known, False
        self._core.texts.folder(request.model)
        answer = self._core.new_answer(LOCAL_OWNER, request, sampling_of(request), now)
        self._subscribe(client, envelope, answer, 0)
        self._core.book.add(answer)
        return answer, True

    def _encode(self, answer: Answer, make_job: MakeJob) -> None:
        def encoded(reply: object, now: float) -> None:
            if isinstance(reply, Encoded):
                ids = reply.ids
                self._core.texts.when_described(
                    answer.model, lambda known, at: self._admit(answer, known, ids, at), now
                )
            elif isinstance(reply, SuperfluidError):
                self._core.book.end(answer, "error", now, reply)

        try:
            self._core.texts.submit(answer.model, make_job, encoded)
        except SuperfluidError as error:
            self._core.book.end(answer, "error", answer.accepted_s, error)

    def _admit_ids(self, answer: Answer, known: object, ids: tuple[int, ...], now: float) -> None:
        if isinstance(known, Described) and max(ids) >= len(known.vocabulary):
            error = Invalid(
                f"tokens has id {max(ids)}; {answer.model} has ids 0 to "
                f"{len(known.vocabulary) - 1}",
                param="tokens",
            )
            self._core.book.end(answer, "error", now, error)
            return
        self._admit(answer, known, pack_ids(ids), now)

    def _admit(self, answer: Answer, known: object, ids: bytes, now: float) -> None:
        if answer.ended:
            return
        if isinstance(known, SuperfluidError):
            self._core.book.end(answer, "error", now, known)
            return
        if not ids:
            error = Invalid("the prompt has no tokens; give at least one", param="prompt")
            self._core.book.end(answer, "error", now, error)
            return
        answer.prompt = PackedIds(ids)
        answer.prompt_tokens = len(ids) // 4
        try:
            self._core.runs.waiting.add(answer, now)
        except SuperfluidError as error:
            self._core.book.end(answer, "error", now, error)

    def _find(self, client: ClientKey, request: AttachRequest) -> Answer:
        named = [request.about, request.key, request.session]
        if sum(name is not None for name in named) != 1:
            raise Invalid("name the answer by one of about, key and session", param="about")
        if request.about is not None:
            return self._core.book.subscription(client, request.about).answer
        if request.key is not None:
            found = self._core.book.by_key(LOCAL_OWNER, request.key)
        else:
            found = self._core.book.by_session(LOCAL_OWNER, request.session or SessionId(""))
        if found is None:
            raise NotFound(
                "no answer has that key or session; it may have been purged after its retention",
                param="key" if request.key is not None else "session",
            )
        return found

    def _subscribe_when_described(
        self, client: ClientKey, envelope: Envelope, answer: Answer, offset: int, now: float
    ) -> None:
        """Read an answer that may be older than this head's knowledge of its tokenizer."""

        def then(known: object, at: float) -> None:
            if isinstance(known, SuperfluidError):
                self._core.fail_request(client, envelope.id, known)
                return
            try:
                self._subscribe(client, envelope, answer, offset)
            except SuperfluidError as error:
                self._core.fail_request(client, envelope.id, error)

        self._core.texts.when_described(answer.model, then, now)

    def _subscribe(
        self, client: ClientKey, envelope: Envelope, answer: Answer, offset: int
    ) -> None:
        subscription = Subscription(
            client=client,
            request=envelope.id,
            answer=answer,
            credit=envelope.credit,
            offset=offset,
        )
        self._core.book.subscribe(subscription)
        if answer.tokens or answer.ended:
            self._core.book.pump_one(subscription)

    def _end(self, client: ClientKey, envelope: Envelope, body: dict[str, Any]) -> None:
        self._core.outbox.reply(
            Reply(client=client, body={"id": envelope.id, "kind": "end", **body})
        )


Operation = Callable[[Api, ClientKey, Envelope, dict[str, Any], float], None]

OPERATIONS: dict[str, Operation] = {
    "hello": Api.hello,
    "ping": Api.ping,
    "generate": Api.generate,
    "chat": Api.chat,
    "cancel": Api.cancel,
    "more": Api.more,
    "attach": Api.attach,
    "tokenize": Api.tokenize,
    "detokenize": Api.detokenize,
    "status": Api.status,
    "nodes": Api.nodes,
    "models": Api.models,
}


def sampling_of(request: GenerationOptions) -> SamplingParams:
    """The sampling part of a request; seed None stays for the core to draw."""
    return SamplingParams(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=request.seed or 0,
        ignore_eos=request.ignore_eos,
    )


def _only_known(body: dict[str, Any]) -> dict[str, Any]:
    """The body, once it asks for nothing that would have to be passed over in silence."""
    for name in NOT_YET:
        if body.get(name) not in (None, [], {}, False):
            raise Invalid(f"{name} is not served by this version; leave it out", param=name)
    if body.get("n", 1) != 1:
        raise Invalid("n is served for 1 only; send the request n times", param="n")
    return body
