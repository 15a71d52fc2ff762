"""The operations that answer messages: of a whole conversation, and of one that a session keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bus.api_maps import from_map
from bus.errors import Invalid, NotFound
from bus.messages.api import SessionRequest
from bus.messages.chat import ChatOptions, ChatRequest, SessionChatRequest
from head.answer_operations import LOCAL_OWNER, AnswerOperations, of_session, one_choice
from head.answer_readers import names_of_calls
from head.answers import Answer
from head.chat_request import ChatPlan, chat_plan
from head.chat_turns import lack_calls, messages_behind, newest_in, with_calls
from head.operation import ApiRequest, Core
from head.render_job import render_job
from head.sessions import Session


class ChatOperations:
    """Owned by the API; works on the head's core."""

    def __init__(self, core: Core, answers: AnswerOperations) -> None:
        self._core = core
        self._answers = answers

    def chat(self, request: ApiRequest, now: float) -> None:
        """Answer the last of a conversation's messages."""
        asked = from_map(ChatRequest, one_choice(request.body))
        plan = self._checked(asked)
        make_job, size_bytes = render_job(
            asked.messages,
            asked.template,
            plan.packed_tools,
            continue_final=asked.continue_final,
        )
        answer = self._answers.open_answer(request, asked, now)
        if answer is not None:
            admission = self._answers.admission(request, asked, answer, plan=plan)
            admission.encode(make_job, size_bytes)

    def session_chat(self, request: ApiRequest, now: float) -> None:
        """Add messages to a session and answer the last of them, as one turn."""
        named = from_map(SessionRequest, request.body)
        made = self._core.runs.made
        session = made.find(LOCAL_OWNER, named.session)
        asked = from_map(SessionChatRequest, of_session(one_choice(request.body), session))
        plan = self._checked(asked)
        if self._answers.attach_known(request, asked, now, session.id):
            return
        made.find_idle(LOCAL_OWNER, asked.session)
        begun = len(session.context) > 0
        messages = self._behind(session, asked.messages) if begun else asked.messages
        make_job, size_bytes = render_job(
            messages, asked.template, plan.packed_tools, after_answer=begun
        )
        answer = self._answers.new_answer(request, asked, now, session.id)
        behind = len(messages) - len(asked.messages)
        admission = self._answers.admission(
            request, asked, answer, plan=plan, talk=session, behind=behind
        )
        made.begin_turn(session, answer, joins=True)
        admission.encode(make_job, size_bytes)

    def _behind(
        self, session: Session, messages: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """New messages as they are rendered, behind what stands for the last answer."""
        if lack_calls(messages):
            latest = newest_in(session.context, self._answers_before(session))
            if latest is not None:
                messages = with_calls(
                    messages, names_of_calls(latest[0], self._core.texts, latest[1])
                )
        return messages_behind(messages)

    def _answers_before(self, session: Session) -> Iterator[Answer]:
        """Answers of a session and of those that it was forked from, the newest first."""
        parent: Session | None = session
        while parent is not None:
            yield from self._core.book.of_session(LOCAL_OWNER, parent.id)
            parent = self._parent(parent)

    def _parent(self, session: Session) -> Session | None:
        """What a session was forked from; None for nothing, or when that is no more."""
        if session.parent is None:
            return None
        try:
            return self._core.runs.made.find(LOCAL_OWNER, session.parent)
        except NotFound:
            return None

    def _checked(self, asked: ChatOptions) -> ChatPlan:
        if not asked.messages:
            raise Invalid("messages is empty; give at least one message", param="messages")
        self._core.media.check_chat(asked.model, asked.messages)
        return chat_plan(asked)
