"""The operations that make, read and end answers: generate, attach, cancel, more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.api_maps import from_map
from bus.errors import ContextLengthExceeded, CursorAhead, Invalid, NotFound, SuperfluidError
from bus.ids import ModelName, SessionId
from bus.messages.api import (
    OF_CHATS,
    QOS_NAMES,
    AboutRequest,
    AttachRequest,
    GenerateRequest,
    GenerationOptions,
    SessionGenerateRequest,
)
from bus.messages.text import Encode
from head.admission import Admission
from head.answers import Answer, Subscription
from head.chat_request import ChatPlan
from head.effects import NOBODY, ClientKey
from head.model_kinds import NO_TEXT, makes_no_text
from head.operation import ApiRequest, Core
from head.sampling_request import constraint_param, sampling_of
from head.session_lines import SessionLines
from head.sessions import Session

#: Until clients have keys, whoever may open the API socket is one owner.
LOCAL_OWNER = "local"


class AnswerOperations:
    """Owned by the API; works on the head's core."""

    def __init__(self, core: Core, lines: SessionLines) -> None:
        self._core = core
        self._lines = lines

    def generate(self, request: ApiRequest, now: float) -> None:
        asked = from_map(GenerateRequest, only_known(request.body))
        if (asked.prompt is None) == (asked.tokens is None):
            raise Invalid("give one of prompt (text) and tokens (ids)", param="prompt")
        if asked.prompt == "" or asked.tokens == ():
            raise Invalid("the prompt is empty; give at least one token of text", param="prompt")
        if asked.prompt is not None:
            self._refuse_hopeless(asked.model, asked.prompt)
        media = self._core.media.of_prompt(asked)
        answer = self.open_answer(request, asked, now)
        if answer is None:
            return
        answer.media = media
        admission = self.admission(request, asked, answer)
        if asked.tokens is not None:
            admission.take_ids(asked.tokens, now)
            return
        text = asked.prompt or ""
        admission.encode(lambda job, folder: Encode(job=job, folder=folder, text=text), len(text))

    def attach(self, request: ApiRequest, now: float) -> None:
        asked = from_map(AttachRequest, request.body)
        answer = self._find(request.client, asked)
        have = len(answer.tokens)
        if asked.offset > have:
            raise CursorAhead(
                f"offset {asked.offset} is above the answer's {have} tokens; attach at {have}",
                param="offset",
                details={"offset": asked.offset, "have": have},
            )
        self._core.put_back.check_cursor(answer.id, asked.offset)
        self._subscribe_when_described(request, answer, asked.offset, now)

    def cancel(self, request: ApiRequest, now: float) -> None:
        asked = from_map(AboutRequest, request.body)
        if not self._lines.cancel(request.client, asked.about):
            answer = self._core.book.subscription(request.client, asked.about).answer
            self._core.runs.cancel(answer, now)
        self._core.outbox.reply(request.end({}))

    def more(self, request: ApiRequest, now: float) -> None:
        asked = from_map(AboutRequest, request.body)
        subscription = self._core.book.subscription(request.client, asked.about)
        subscription.grant(asked.credit)
        self._core.book.pump_one(subscription)
        self._core.runs.caught_up(subscription.answer, now)
        self._core.outbox.reply(request.end({}))

    def goodbye(self, request: ApiRequest, now: float) -> None:
        self._core.client_gone(request.client, now, left=True)
        self._core.outbox.reply(request.end({}))

    # --- turns of sessions --------------------------------------------------------------------

    def attach_known(
        self,
        request: ApiRequest,
        asked: GenerationOptions,
        now: float,
        session: SessionId | None = None,
    ) -> bool:
        """Read the answer that a repeated key names; False when it names none to be read.

        Args:
            session: the made session that the request is a turn of.

        Raises:
            Invalid: the key named another request.
        """
        known = self._core.book.by_key(LOCAL_OWNER, asked.key) if asked.key is not None else None
        if known is None or known.may_be_tried_again:
            return False
        if (
            known.model != asked.model
            or (known.is_turn if session is None else known.session != session)
            or (known.request_digest and known.request_digest != request.digest())
        ):
            raise Invalid("this key named another request; choose a new one", param="key")
        self._subscribe_when_described(request, known, 0, now)
        return True

    def begin_turn(
        self, request: ApiRequest, asked: SessionGenerateRequest, session: Session, now: float
    ) -> None:
        """Run a turn of a session, which is idle, on its context."""
        answer = self.new_answer(request, asked, now, session.id)
        answer.keep_output = asked.keep_output
        try:
            self._core.runs.made.begin_turn(session, answer)
        except SuperfluidError as error:
            self._core.book.end(answer, "error", now, error)
            return
        self.admission(request, asked, answer).take_context(session, now)

    # --- new answers --------------------------------------------------------------------------

    def open_answer(
        self, request: ApiRequest, asked: GenerationOptions, now: float
    ) -> Answer | None:
        """A request's answer when it is new; a repeated key attaches to its own."""
        if self.attach_known(request, asked, now):
            return None
        return self.new_answer(request, asked, now)

    def new_answer(
        self,
        request: ApiRequest,
        asked: GenerationOptions,
        now: float,
        session: SessionId | None = None,
    ) -> Answer:
        self._core.texts.check(asked.model)
        if (kind := self._core.texts.kind(asked.model)) in NO_TEXT:
            raise makes_no_text(asked.model, kind)
        blobs = self._core.uploads.find(asked.blobs)
        answer = self._core.new_answer(LOCAL_OWNER, asked, sampling_of(asked), now, session)
        answer.blobs = blobs
        if answer.key is not None:
            answer.request_digest = request.digest()
        self._subscribe(request, answer, 0)
        self._core.book.add(answer)
        return answer

    def admission(
        self,
        request: ApiRequest,
        asked: GenerationOptions,
        answer: Answer,
        *,
        plan: ChatPlan | None = None,
        talk: Session | None = None,
        behind: int = 0,
    ) -> Admission:
        """A new answer's way to the waiting line; the arguments are its own."""
        return Admission(
            core=self._core,
            client=request.client,
            answer=answer,
            constraint_param=constraint_param(asked),
            plan=plan,
            talk=talk,
            behind=behind,
        )

    # --- parts --------------------------------------------------------------------------------

    def _refuse_hopeless(self, model: ModelName, text: str) -> None:
        """Refuse a text that no window can hold, before it costs a text process anything."""
        least = self._core.texts.least_tokens(model, len(text.encode("utf-8", "replace")))
        window = self._core.fleet.largest_window(model)
        if window and least > window:
            raise ContextLengthExceeded(
                f"the prompt has at least {least} tokens and the largest window for {model} is "
                f"{window}; shorten the prompt",
                param="prompt",
                details={"length": least, "max": window},
            )

    def _find(self, client: ClientKey, asked: AttachRequest) -> Answer:
        named = [asked.about, asked.key, asked.session]
        if sum(name is not None for name in named) != 1:
            raise Invalid("name the answer by one of about, key and session", param="about")
        if asked.about is not None:
            return self._core.book.subscription(client, asked.about).answer
        if asked.key is not None:
            found = self._core.book.by_key(LOCAL_OWNER, asked.key)
        else:
            found = self._core.book.by_session(LOCAL_OWNER, asked.session or SessionId(""))
        if found is None:
            raise NotFound(
                "no answer has that key or session; it may have been purged after its retention",
                param="key" if asked.key is not None else "session",
            )
        return found

    def _subscribe_when_described(
        self, request: ApiRequest, answer: Answer, offset: int, now: float
    ) -> None:
        """Read an answer that may be older than this head's knowledge of its tokenizer."""

        def then(known: object, at: float) -> None:
            if isinstance(known, SuperfluidError):
                self._core.fail_request(request.client, request.id, known)
                return
            try:
                self._core.texts.check_readable(answer.model, answer.tokenizer_digest)
                self._subscribe(request, answer, offset)
            except SuperfluidError as error:
                self._core.fail_request(request.client, request.id, error)
            self._core.runs.caught_up(answer, at)

        self._core.texts.when_described(
            answer.model, then, now, answer.tokenizer_digest, client=request.client
        )

    def _subscribe(self, request: ApiRequest, answer: Answer, offset: int) -> None:
        if request.client == NOBODY:
            return
        subscription = Subscription(
            client=request.client,
            request=request.id,
            answer=answer,
            credit=request.envelope.credit,
            offset=offset,
        )
        self._core.book.subscribe(subscription)
        if answer.tokens or answer.ended:
            self._core.book.pump_one(subscription)


def only_known(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body, once it asks for nothing that would have to be passed over in silence."""
    for name in OF_CHATS:
        if body.get(name) not in (None, [], {}, False):
            raise Invalid(f"{name} is for chats; leave it out, or ask by chat", param=name)
    return one_choice(body)


def one_choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body, once it asks for one answer.

    Raises:
        Invalid: it asks for several.
    """
    if body.get("n", 1) != 1:
        raise Invalid("n is served for 1 only; send the request n times", param="n")
    return body


def of_session(body: Mapping[str, Any], session: Session) -> dict[str, Any]:
    """The body of a session's turn, with the session's own model and class.

    Raises:
        Invalid: it names another model.
    """
    if body.get("model", session.model) != session.model:
        raise Invalid(
            f"the session's model is {session.model}; leave model out, or create a session for "
            f"{str(body['model'])[:80]}",
            param="model",
        )
    return {"qos": QOS_NAMES[session.qos], "model": session.model, **body}
