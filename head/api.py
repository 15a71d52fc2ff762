"""The client API: from a request to its operation.

Each operation is a row in `OPERATIONS`; it may raise any `SuperfluidError`, which becomes the
request's one error reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bus.api_maps import from_map
from bus.errors import Invalid, SuperfluidError
from bus.ids import ModelName, pack_ids, unpack_ids
from bus.messages.api import AboutRequest, DetokenizeRequest, TokenizeRequest
from bus.messages.text import Decode, Decoded, Described, Encode, Encoded
from head import reports
from head.answer_operations import AnswerOperations
from head.blob_operations import BlobOperations
from head.chat_operations import ChatOperations
from head.description_waits import ID_BYTES
from head.effects import ClientKey
from head.embed_operations import EmbedOperations
from head.explain_operations import ExplainOperations
from head.job_requests import JobRequests
from head.model_operations import ModelOperations
from head.node_operations import NodeOperations
from head.operation import ApiRequest, Core
from head.render_operation import RenderOperation
from head.sampling_request import check_below
from head.session_lines import SessionLines
from head.session_operations import SessionOperations
from head.store_operations import StoreOperations
from head.texts import MakeJob
from head.transcribe_operations import TranscribeOperations


class Api:
    """The operations, over the head's core. Owned by the core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.lines = SessionLines(core, self.handle)
        self.answers = AnswerOperations(core, self.lines)
        self.jobs = JobRequests(core)
        self.embeddings = EmbedOperations(core, self.jobs)
        self.transcripts = TranscribeOperations(core, self.jobs)
        self.chats = ChatOperations(core, self.answers)
        self.blobs = BlobOperations(core)
        self.prompts = RenderOperation(core)
        self.placing = ExplainOperations(core)
        self.sessions = SessionOperations(core, self.answers, self.lines)
        self.node_keys = NodeOperations(core)
        self.node_models = ModelOperations(core)
        self.store = StoreOperations(core)

    def handle(self, request: ApiRequest, now: float) -> None:
        """Run one request.

        Raises:
            SuperfluidError: it can not be served.
        """
        operation = OPERATIONS.get(request.envelope.op)
        if operation is None:
            raise Invalid(
                f"unknown operation {request.envelope.op!r}; this head serves: "
                f"{', '.join(OPERATIONS)}",
                param="op",
            )
        client = request.client
        if any(
            known.is_open(client, request.id) for known in (self._core.book, self.lines, self.jobs)
        ):
            raise Invalid("id names an open request already; choose another", param="id")
        if self.lines.stands_behind(request):
            return
        if request.envelope.op in GROWS:
            self._core.storage.check_new_work()
        operation(self, request, now)

    def client_gone(self, client: ClientKey) -> None:
        """A client's connection ended."""
        self.lines.client_gone(client)
        self.jobs.client_gone(client)

    # --- open requests --------------------------------------------------------------------------

    def cancel(self, request: ApiRequest, now: float) -> None:
        asked = from_map(AboutRequest, request.body)
        if not self.jobs.is_open(request.client, asked.about):
            self.answers.cancel(request, now)
            return
        self.jobs.find(request.client, asked.about).cancel(now)
        self._end(request, {})

    def more(self, request: ApiRequest, now: float) -> None:
        asked = from_map(AboutRequest, request.body)
        if not self.jobs.is_open(request.client, asked.about):
            self.answers.more(request, now)
            return
        self.jobs.find(request.client, asked.about).more(asked.credit, now)
        self._end(request, {})

    # --- text ---------------------------------------------------------------------------------

    def tokenize(self, request: ApiRequest, now: float) -> None:
        asked = from_map(TokenizeRequest, request.body)

        def job(number: int, folder: str) -> object:
            return Encode(job=number, folder=folder, text=asked.text, add_special=asked.add_special)

        def shape(reply: object) -> dict[str, Any]:
            ids = reply.ids if isinstance(reply, Encoded) else b""
            return {"tokens": list(unpack_ids(ids))}

        self._text_operation(request, asked.model, job, shape, len(asked.text))

    def detokenize(self, request: ApiRequest, now: float) -> None:
        asked = from_map(DetokenizeRequest, request.body)
        ids = pack_ids(asked.tokens)

        def job(number: int, folder: str) -> object:
            return Decode(job=number, folder=folder, ids=ids, skip_special=asked.skip_special)

        def shape(reply: object) -> dict[str, Any]:
            return {"text": reply.text if isinstance(reply, Decoded) else ""}

        def described(known: object, now: float) -> None:
            try:
                if isinstance(known, SuperfluidError):
                    raise known
                if isinstance(known, Described):
                    check_below(asked.tokens, len(known.vocabulary), "tokens", asked.model)
                self._text_operation(request, asked.model, job, shape, len(ids))
            except SuperfluidError as error:
                self._core.fail_request(request.client, request.id, error)

        size = ID_BYTES * len(asked.tokens)
        self._core.texts.when_described(
            asked.model, described, now, client=request.client, size_bytes=size
        )

    def _text_operation(
        self,
        request: ApiRequest,
        model: ModelName,
        job: MakeJob,
        shape: Callable[[object], dict[str, Any]],
        size_bytes: int,
    ) -> None:
        def then(reply: object, now: float) -> None:
            if isinstance(reply, SuperfluidError):
                self._core.fail_request(request.client, request.id, reply)
            else:
                self._end(request, shape(reply))

        self._core.texts.submit(
            model, job, then, client=request.client, size_bytes=size_bytes, until_gone=True
        )

    # --- reports ------------------------------------------------------------------------------

    def hello(self, request: ApiRequest, now: float) -> None:
        self._end(request, reports.hello(sorted(OPERATIONS)))

    def ping(self, request: ApiRequest, now: float) -> None:
        self._end(request, {})

    def status(self, request: ApiRequest, now: float) -> None:
        self._end(request, self._core.status(now))

    def nodes(self, request: ApiRequest, now: float) -> None:
        listed = reports.nodes(self._core.fleet, now, self._core.texts.digest)
        dialed = reports.dialed(self._core.dialed())
        enrolment = self._core.enrolment.report()
        self._end(request, {"nodes": listed, "dialed": dialed, "enrolment": enrolment})

    def models(self, request: ApiRequest, now: float) -> None:
        listed = reports.models(self._core.fleet, self._core.texts, self._core.runs.queued())
        self._end(request, {"models": listed})

    def _end(self, request: ApiRequest, body: dict[str, Any]) -> None:
        self._core.outbox.reply(request.end(body))


Operation = Callable[[Api, ApiRequest, float], None]

OPERATIONS: dict[str, Operation] = {
    "hello": Api.hello,
    "ping": Api.ping,
    "generate": lambda api, request, now: api.answers.generate(request, now),
    "chat": lambda api, request, now: api.chats.chat(request, now),
    "cancel": Api.cancel,
    "more": Api.more,
    "attach": lambda api, request, now: api.answers.attach(request, now),
    "goodbye": lambda api, request, now: api.answers.goodbye(request, now),
    "session.create": lambda api, request, now: api.sessions.create(request, now),
    "session.append": lambda api, request, now: api.sessions.append(request, now),
    "session.generate": lambda api, request, now: api.sessions.generate(request, now),
    "session.chat": lambda api, request, now: api.chats.session_chat(request, now),
    "session.fork": lambda api, request, now: api.sessions.fork(request, now),
    "session.park": lambda api, request, now: api.sessions.park(request, now),
    "session.resume": lambda api, request, now: api.sessions.resume(request, now),
    "session.finish": lambda api, request, now: api.sessions.finish(request, now),
    "session.get": lambda api, request, now: api.sessions.get(request, now),
    "session.ls": lambda api, request, now: api.sessions.ls(request, now),
    "tokenize": Api.tokenize,
    "detokenize": Api.detokenize,
    "render": lambda api, request, now: api.prompts.render(request, now),
    "embed": lambda api, request, now: api.embeddings.embed(request, now),
    "transcribe": lambda api, request, now: api.transcripts.transcribe(request, now),
    "put_blob": lambda api, request, now: api.blobs.put_blob(request, now),
    "has_blob": lambda api, request, now: api.blobs.has_blob(request, now),
    "media.probe": lambda api, request, now: api.blobs.probe(request, now),
    "explain": lambda api, request, now: api.placing.explain(request, now),
    "status": Api.status,
    "nodes": Api.nodes,
    "models": Api.models,
    "model.load": lambda api, request, now: api.node_models.load(request, now),
    "model.unload": lambda api, request, now: api.node_models.unload(request, now),
    "node.approve": lambda api, request, now: api.node_keys.approve(request, now),
    "node.revoke": lambda api, request, now: api.node_keys.revoke(request, now),
    "node.forget": lambda api, request, now: api.node_keys.forget(request, now),
    "node.drain": lambda api, request, now: api.node_keys.drain(request, now),
    "node.undrain": lambda api, request, now: api.node_keys.undrain(request, now),
    "node.label": lambda api, request, now: api.node_keys.label(request, now),
    "backup": lambda api, request, now: api.store.backup(request, now),
    "node.enrolment": lambda api, request, now: api.node_keys.enrolment(request, now),
}

#: What makes kept sessions longer. What makes a new one, or an answer, asks in the core.
GROWS = frozenset({"session.append"})
