"""The operations on sessions that clients make, from create to finish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bus.api_maps import from_map
from bus.errors import Invalid, NotFound, SuperfluidError
from bus.ids import PackedIds, pack_ids, unpack_ids
from bus.messages.api import (
    QOS_CLASSES,
    QOS_NAMES,
    SessionAppendRequest,
    SessionCreateRequest,
    SessionGenerateRequest,
    SessionGetRequest,
    SessionRequest,
)
from bus.messages.parts import U32
from bus.messages.text import Described, Encode, Encoded
from head.answer_operations import LOCAL_OWNER, AnswerOperations, of_session, only_known
from head.answers import Answer
from head.description_waits import ID_BYTES
from head.operation import ApiRequest, Core
from head.parking import Resumed
from head.sampling_request import check_below
from head.session_lines import SessionLines
from head.session_listing import SessionListRequest, session_page
from head.sessions import Session, state_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForkRequest(SessionRequest):
    """`offset` is how many tokens of the context the new session has; all when left out."""

    offset: U32 | None = None


class SessionOperations:
    """Owned by the API; works on the head's core, when no append of the session comes first."""

    def __init__(self, core: Core, answers: AnswerOperations, lines: SessionLines) -> None:
        self._core = core
        self._answers = answers
        self._lines = lines

    def create(self, request: ApiRequest, now: float) -> None:
        asked = from_map(SessionCreateRequest, request.body)

        def then(known: object, at: float) -> None:
            try:
                if isinstance(known, NotFound):
                    raise known
                made = self._core.runs.made.create(
                    self._core.new_session_id(), LOCAL_OWNER, asked.model, qos, at
                )
                self._core.outbox.reply(request.end({"session": made.id}))
            except SuperfluidError as error:
                self._core.fail_request(request.client, request.id, error)

        texts, qos = self._core.texts, QOS_CLASSES[asked.qos]
        texts.check(asked.model)
        listed = any(asked.model in node.models for node in self._core.fleet.nodes)
        if listed or texts.source.state(asked.model):
            then(None, now)
        else:
            # While the head is new its nodes may not be there yet, and nobody knows of the model.
            texts.when_described(asked.model, then, now, client=request.client)

    def append(self, request: ApiRequest, now: float) -> None:
        asked = from_map(SessionAppendRequest, request.body)
        if (asked.text is None) == (asked.tokens is None):
            raise Invalid("give one of text and tokens (ids)", param="text")
        if asked.text == "" or asked.tokens == ():
            raise Invalid("there is nothing to append; give at least one token", param="text")
        session = self._core.runs.made.find_idle(LOCAL_OWNER, asked.session)
        if asked.tokens is not None:
            self._append_ids(request, session, asked.tokens, now)
        else:
            self._append_text(request, session, asked.text or "")

    def generate(self, request: ApiRequest, now: float) -> None:
        named = from_map(SessionRequest, request.body)
        session = self._core.runs.made.find(LOCAL_OWNER, named.session)
        asked = from_map(SessionGenerateRequest, of_session(only_known(request.body), session))
        if self._answers.attach_known(request, asked, now, session.id):
            return
        self._core.runs.made.find_idle(LOCAL_OWNER, asked.session)
        self._answers.begin_turn(request, asked, session, now)

    def fork(self, request: ApiRequest, now: float) -> None:
        asked = from_map(SessionForkRequest, request.body)
        made = self._core.runs.made
        parent = made.find(LOCAL_OWNER, asked.session)
        tokens = len(parent.context) if asked.offset is None else asked.offset
        forked = made.fork(parent, self._core.new_session_id(), tokens, now)
        self._core.outbox.reply(request.end({"session": forked.id, "tokens": tokens}))

    def park(self, request: ApiRequest, now: float) -> None:
        """Free a session's node, after its turn was cancelled; fine for one that is parked."""
        asked = from_map(SessionRequest, request.body)
        made = self._core.runs.made
        session = made.find(LOCAL_OWNER, asked.session)
        if session.answer is not None:
            self._core.runs.cancel(session.answer, now)
        made.park(session)
        body = {"session": session.id, "tokens": len(session.context), "node": session.file_on}
        self._core.outbox.reply(request.end(body))

    def resume(self, request: ApiRequest, now: float) -> None:
        """Place a parked session again; answered once its node has said what it reuses."""
        asked = from_map(SessionRequest, request.body)
        made = self._core.runs.made
        session = made.find(LOCAL_OWNER, asked.session)
        tokens = len(session.context)

        def then(resumed: Resumed) -> None:
            body = {
                "session": session.id,
                "node": resumed.node,
                "tokens": tokens,
                "reused": resumed.reused,
                "exact": resumed.exact,
                "problem": resumed.problem,
            }
            self._core.outbox.reply(request.end(body))

        made.resume(session, then, now)

    def finish(self, request: ApiRequest, now: float) -> None:
        """End a session, and its turn before; one that is unknown is finished already."""
        asked = from_map(SessionRequest, request.body)
        made = self._core.runs.made
        try:
            session = made.find(LOCAL_OWNER, asked.session)
        except NotFound:
            self._core.outbox.reply(request.end({}))
            return
        if session.answer is not None:
            self._core.runs.cancel(session.answer, now)
        made.finish(session, now)
        self._core.outbox.reply(request.end({}))

    def get(self, request: ApiRequest, now: float) -> None:
        asked = from_map(SessionGetRequest, request.body)
        session = self._core.runs.made.find(LOCAL_OWNER, asked.session)
        body = _report(session, self._core.book.by_session(LOCAL_OWNER, session.id))
        if asked.limit:
            ids = session.context.slice(asked.offset, asked.offset + asked.limit)
            body["ids"] = list(unpack_ids(ids))
        self._core.outbox.reply(request.end(body))

    def ls(self, request: ApiRequest, now: float) -> None:
        asked = from_map(SessionListRequest, request.body)
        core = self._core
        page = session_page(asked, LOCAL_OWNER, core.runs.made, core.book, now)
        core.outbox.reply(request.end(page))

    # --- parts --------------------------------------------------------------------------------

    def _append_ids(
        self, request: ApiRequest, session: Session, ids: tuple[int, ...], now: float
    ) -> None:
        def then(known: object, at: float) -> None:
            try:
                if isinstance(known, SuperfluidError):
                    raise known
                if isinstance(known, Described):
                    check_below(ids, len(known.vocabulary), "tokens", session.model)
                    self._append(request, session, pack_ids(ids), known.digest)
            except SuperfluidError as error:
                self._core.fail_request(request.client, request.id, error)
            self._lines.end(session, at)

        self._core.texts.check(session.model)
        self._lines.begin(session, request)
        size = ID_BYTES * len(ids)
        try:
            self._core.texts.when_described(
                session.model, then, now, client=request.client, size_bytes=size
            )
        except SuperfluidError:
            self._lines.end(session, now)
            raise

    def _append_text(self, request: ApiRequest, session: Session, text: str) -> None:
        first = not len(session.context)

        def encoded(reply: object, now: float) -> None:
            try:
                if isinstance(reply, SuperfluidError):
                    raise reply
                if isinstance(reply, Encoded):
                    self._core.texts.used(session.model, reply.digest)
                    self._append(request, session, reply.ids, reply.digest)
            except SuperfluidError as error:
                self._core.fail_request(request.client, request.id, error)
            self._lines.end(session, now)

        # Not `until_gone`: what a client asked for is done whether it waits or not.
        self._core.texts.submit(
            session.model,
            lambda job, folder: Encode(job=job, folder=folder, text=text, add_special=first),
            encoded,
            client=request.client,
            size_bytes=len(text),
        )
        self._lines.begin(session, request)

    def _append(self, request: ApiRequest, session: Session, ids: PackedIds, digest: int) -> None:
        session.check_takes()
        if ids:
            session.goes_by(digest)
            self._core.runs.made.append(session, ids)
        self._core.outbox.reply(request.end({"tokens": len(session.context)}))


def _report(session: Session, latest: Answer | None) -> dict[str, Any]:
    """What `session.get` says. `tokens` does not count an answer that has not ended.

    Args:
        latest: the answer to the session's last turn, as far as it is kept.
    """
    placed = session.placed
    return {
        "session": session.id,
        "model": session.model,
        "qos": QOS_NAMES[session.qos],
        "state": state_of(session),
        "tokens": len(session.context),
        "node": placed.node if placed is not None else "",
        "file_on": session.file_on,
        "parent": session.parent,
        "answer_tokens": len(latest.tokens) if latest is not None else 0,
    }
